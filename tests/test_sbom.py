"""The bill of materials names what the lock holds; the check of licences passes over nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sparrowmq

ROOT = Path(__file__).resolve().parent.parent
LOCK = (ROOT / "requirements.lock").read_text()


def run(program: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools" / program, path],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def sbom(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("sbom") / "dist/sbom.json"
    ended = run("sbom.py", path)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_it_names_each_version_of_the_lock_once(sbom: dict[str, Any]) -> None:
    locked = re.findall(r"^([\w.-]+)==([^\s;]+)", LOCK, re.M)
    named = [(each["name"], each["version"]) for each in sbom["components"]]

    assert sorted(named) == sorted(locked)
    assert len(named) == len(set(named)) == len(re.findall("==", LOCK))
    assert len(named) > 100


def test_it_has_each_hash_of_the_lock(sbom: dict[str, Any]) -> None:
    found = [each for component in sbom["components"] for each in component["hashes"]]

    assert all(component["hashes"] for component in sbom["components"])
    assert {each["alg"] for each in found} == {"SHA-256"}
    assert [each["content"] for each in found] == re.findall(r"sha256:(\w+)", LOCK)


def test_each_library_has_a_licence_and_an_address_of_its_own(sbom: dict[str, Any]) -> None:
    components = [sbom["metadata"]["component"], *sbom["components"]]
    licences = [licence for each in components for licence in each["licenses"]]

    assert all(each.get("expression") or each["license"]["name"] for each in licences)
    assert [len(each["licenses"]) for each in components] == [1] * len(components)
    assert len({each["purl"] for each in components}) == len(components)
    assert components[0]["purl"] == f"pkg:pypi/sparrowmq@{sparrowmq.__version__}"
    assert {each["name"] for each in components if each.get("scope") == "required"} == {"msgspec"}


def test_it_is_the_same_each_time(sbom: dict[str, Any], tmp_path: Path) -> None:
    run("sbom.py", tmp_path / "again.json")

    assert json.loads((tmp_path / "again.json").read_text()) == sbom
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")


def test_library_that_is_not_installed_fails_the_check_of_licences(tmp_path: Path) -> None:
    path = tmp_path / "some.lock"
    path.write_text("msgspec==0.19.0 \\\n    --hash=sha256:00\n")
    assert run("audit.py", path).returncode == 0
    path.write_text("msgspec==0.19.0\nno-such-library==1.0\n")

    ended = run("audit.py", path)

    assert ended.returncode == 1
    assert re.search(r"^no-such-library +not installed here +<-- look here$", ended.stdout, re.M)
