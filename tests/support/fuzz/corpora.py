"""The inputs that are kept, by target: one a line, in hexadecimal.

`tests/fuzz/corpora` has the fewest that reach what fuzzing has reached, and `tests/fuzz/failures`
every input that a target once failed on.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_HOME = Path(__file__).parents[2] / "fuzz"
CORPORA = _HOME / "corpora"
FAILURES = _HOME / "failures"


def read_inputs(directory: Path, name: str) -> list[bytes]:
    """Return the inputs kept for a target."""
    path = directory / f"{name}.hex"
    return [bytes.fromhex(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_inputs(directory: Path, name: str, inputs: Iterable[bytes]) -> None:
    """Keep these inputs for a target, and no others."""
    lines = sorted({data.hex() for data in inputs}, key=lambda line: (len(line), line))
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.hex").write_text("".join(f"{line}\n" for line in lines))
