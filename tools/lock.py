"""The libraries of `requirements.lock`, and what their own metadata say of their licences."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"


class Locked(NamedTuple):
    """A version of a library in the lock.

    Args:
        name: as the lock spells the name.
        version: the version.
        hashes: the SHA-256 of each of its files, in hexadecimal.
    """

    name: str
    version: str
    hashes: tuple[str, ...]


def read_lock(text: str) -> list[Locked]:
    """Return the libraries of a lock in its order; two versions for two Pythons are two entries."""
    entries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.M)
    found = [re.match(r"([\w.-]+)==([^\s;]+)", entry) for entry in entries]
    return [
        Locked(match[1], match[2], tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", match.string)))
        for match in found
        if match is not None
    ]


def licence_of(name: str) -> str | None:
    """Return a distribution's statement of its licence; None if it is not installed."""
    try:
        found = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    classifiers = [
        each.rpartition(" :: ")[2]
        for each in found.get_all("Classifier", [])
        if each.startswith("License :: ")
    ]
    first_line = "".join(found.get_all("License", [])).strip().partition("\n")[0]
    return expression_of(name) or ", ".join(classifiers) or first_line


def expression_of(name: str) -> str:
    """Return the SPDX expression of an installed distribution's licence; "" without one."""
    return ", ".join(metadata.metadata(name).get_all("License-Expression", []))
