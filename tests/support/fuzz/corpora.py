"""The inputs that are kept: one a line, in hexadecimal, by target."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

DIRECTORY = Path(__file__).parents[2] / "fuzz" / "corpora"


def read_corpus(name: str) -> list[bytes]:
    """Return the inputs kept for a target."""
    path = DIRECTORY / f"{name}.hex"
    return [bytes.fromhex(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_corpus(name: str, inputs: Iterable[bytes]) -> None:
    """Keep these inputs for a target, and no others."""
    lines = sorted({data.hex() for data in inputs}, key=lambda line: (len(line), line))
    (DIRECTORY / f"{name}.hex").write_text("".join(f"{line}\n" for line in lines))
