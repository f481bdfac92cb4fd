"""Write the bill of materials: every library of `requirements.lock`, in CycloneDX 1.6.

`make sbom` writes `dist/sbom.json`. The same lock and libraries give the same bytes: there is no
time and no serial number in it.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import sparrowmq
from audit import ELSEWHERE
from lock import LOCK, ROOT, expression_of, licence_of, read_lock


def purl(name: str, version: str) -> str:
    """Return a package URL, in which names have small letters and hyphens."""
    return f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"


def licences(name: str) -> list[dict[str, Any]]:
    """Return a library's licence as an SPDX expression, or in its metadata's words.

    Raises: SystemExit where it is not known.
    """
    stated = licence_of(name)
    if stated is not None and (expression := expression_of(name)):
        return [{"expression": expression}]
    words = ELSEWHERE.get(name, stated)
    if stated is None or not words:
        sys.exit(f"the licence of {name} is not known: it is not installed, or names none")
    return [{"license": {"name": words}}]


def make_sbom(lock: str) -> dict[str, Any]:
    """Return the bill of materials of a lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # What every installation has; the rest belongs to extras, or to the checkout alone.
    required = {re.split(r"[^\w.-]", each)[0] for each in project["dependencies"]}
    own = purl(project["name"], sparrowmq.__version__)
    components = [
        {
            "type": "library",
            "bom-ref": purl(each.name, each.version),
            "name": each.name,
            "version": each.version,
            "scope": "required" if each.name in required else "optional",
            "hashes": [{"alg": "SHA-256", "content": content} for content in each.hashes],
            "licenses": licences(each.name),
            "purl": purl(each.name, each.version),
        }
        for each in read_lock(lock)
    ]
    product = {
        "type": "library",
        "bom-ref": own,
        "name": project["name"],
        "version": sparrowmq.__version__,
        "licenses": [{"expression": project["license"]}],
        "purl": own,
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": product},
        "components": components,
    }


def main(path: Path = ROOT / "dist/sbom.json") -> None:
    """Write the file, and say what is in it."""
    sbom = make_sbom(LOCK.read_text())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sbom, indent=2) + "\n")
    print(f"{path}: {len(sbom['components'])} libraries")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
