"""The package: built twice it is the same; its metadata, its version, and the files around it."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from typer.core import TyperGroup

import sparrowmq
from sparrowmq.cli.main import build_app

ROOT = Path(__file__).resolve().parent.parent
PACKAGING = ROOT / "packaging"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILT_OF = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src", "packaging")
# In parts, so that this file has none of them.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("files", "pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("repo1", "maven", "org"),
        ("repo", "maven", "apache", "org"),
        ("docker", "io"),
        ("ghcr", "io"),
    )
]


def build(directory: Path, mtime: int) -> list[Path]:
    """Build wheel and sdist of a copy of the sources whose files have this time."""
    source = directory / "source"
    source.mkdir(parents=True)
    for name in BUILT_OF:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    for path in source.rglob("*"):
        os.utime(path, (mtime, mtime))
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", directory / "dist"],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        check=True,
        capture_output=True,
    )
    return sorted((directory / "dist").iterdir())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("first"), 1_600_000_000)


def hashes(paths: list[Path]) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.mark.slow
def test_two_builds_are_equal_byte_by_byte(built: list[Path], tmp_path: Path) -> None:
    again = build(tmp_path, 1_650_000_000)

    assert hashes(built) == hashes(again)
    assert sorted(path.suffix for path in built) == [".gz", ".whl"]


@pytest.mark.slow
def test_the_wheel_says_what_it_is(built: list[Path]) -> None:
    (wheel,) = (path for path in built if path.suffix == ".whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (place,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        found = HeaderParser().parsestr(archive.read(place).decode())

    assert sparrowmq.__version__ == found["Version"]
    assert set(PROJECT["classifiers"]) == set(found.get_all("Classifier", []))
    assert "rocketmq" in found["Keywords"]
    assert found["Requires-Python"] == ">=3.11"
    assert found["License-Expression"] == "Apache-2.0"
    assert "sparrowmq/py.typed" in names
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {
        "sparrowmq",
        "pyspark_rocketmq",
    }


def test_the_version_stands_in_one_place() -> None:
    assert "version" in PROJECT["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", sparrowmq.__version__)
    for path in (ROOT / "pyproject.toml", *filter(Path.is_file, PACKAGING.rglob("*"))):
        assert f"sparrowmq=={sparrowmq.__version__}" not in path.read_text()
        assert f'"{sparrowmq.__version__}"' not in path.read_text()


def test_the_changelog_begins_with_what_comes() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)

    assert headings[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", each) for each in headings[1:])


def test_no_file_names_the_host_of_a_package_registry() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = [
        (name, host)
        for name in filter(None, listed.stdout.split("\0"))
        if (ROOT / name).is_file()
        for host in REGISTRIES
        if host.encode() in (ROOT / name).read_bytes()
    ]

    assert found == []


def test_licences_of_all_dependencies_are_known() -> None:
    ended = subprocess.run(
        [sys.executable, ROOT / "tools/audit.py"], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stdout


def check_command(words: list[str]) -> None:
    """Parse a command of ours without running it; an unknown option fails."""
    app = typer.main.get_command(build_app())
    assert isinstance(app, TyperGroup)
    command: Any = app.commands[words[0]]
    rest = words[1:]
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(words[0], rest)


def dockerfile() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions in order."""
    text = re.sub(r"\\\n\s*", "", (PACKAGING / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_is_built_of_files_that_are_there_and_runs_commands_that_are_there() -> None:
    instructions = dockerfile()
    of: dict[str, list[str]] = {}
    for name, rest in instructions:
        of.setdefault(name, []).append(rest)

    assert instructions[0][0] == "FROM"
    for rest in of["COPY"]:
        if not rest.startswith("--from="):
            assert all((ROOT / each).exists() for each in rest.split()[:-1]), rest
    assert of["ENTRYPOINT"] == ['["sparrowmq"]']
    (default,) = of["CMD"]
    check_command(yaml.safe_load(default))
    (health,) = of["HEALTHCHECK"]
    program, option, code = yaml.safe_load(health.partition("CMD ")[2])
    assert (program, option) == ("python", "-c")
    compile(code, "HEALTHCHECK", "exec")
    served = yaml.safe_load(default)
    assert f":{served[served.index('--health-port') + 1]}/health" in code
    # No root, the data outside of the image, and an end by the signal that servers heed.
    assert of["USER"] not in ([], ["root"], ["0"])
    assert of["VOLUME"] == ["/data"]
    assert of["STOPSIGNAL"] == ["SIGTERM"]


def test_the_compose_file_runs_the_image() -> None:
    compose = yaml.safe_load((PACKAGING / "compose.yaml").read_text())
    (service,) = compose["services"].values()

    assert (PACKAGING / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).exists()
    volumes = {each.partition(":")[0] for each in service["volumes"]}
    assert set(compose["volumes"]) == volumes
    assert {"build", "volumes", "expose", "stop_grace_period", "restart"} >= set(service)


def test_the_alerts_and_the_board_name_commands_that_are_there() -> None:
    (group,) = yaml.safe_load((PACKAGING / "prometheus/sparrowmq.rules.yml").read_text())["groups"]
    panels = yaml.safe_load((PACKAGING / "grafana/sparrowmq.json").read_text())["panels"]
    texts = [rule["annotations"]["action"] for rule in group["rules"]]
    texts += [panel.get("description", "") for panel in panels]
    named = [
        command.replace("{{ $labels.group }}", "GROUP")
        for text in texts
        for command in re.findall(r"`sparrowmq ([^`]+)`", text)
    ]

    for command in named:
        check_command(command.split())
    # None stands outside of backquotes, where it would not be checked.
    assert len(named) == sum(text.count("sparrowmq ") for text in texts)
    assert {"rebalance doctor GROUP", "dlq show GROUP"} <= set(named)


def test_the_unit_starts_a_command_that_is_there() -> None:
    unit = (PACKAGING / "sparrowmq.service").read_text()
    (start,) = re.findall(r"^ExecStart=(.+)$", unit, re.M)
    program, *words = shlex.split(start)

    assert program == "/opt/sparrowmq/bin/sparrowmq"
    check_command(words)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "sparrowmq.service"
    unit = (PACKAGING / "sparrowmq.service").read_text()
    # The program is not installed where the unit has it, and a checkout may be at any path.
    program = tmp_path / "my projects 100%" / "sparrow 麻雀"
    program.parent.mkdir()
    program.symlink_to(sys.executable)
    quoted = f'"{program}"'.replace("%", "%%")
    path.write_text(unit.replace("/opt/sparrowmq/bin/sparrowmq", quoted))
    ended = subprocess.run(
        ["systemd-analyze", "verify", path], capture_output=True, text=True, check=False
    )

    assert ended.stdout + ended.stderr == ""
    assert ended.returncode == 0


def test_locks_name_one_version_of_each_library() -> None:
    def versions(lock: str) -> set[str]:
        return set(re.findall(r"^[\w.-]+==\S+", (ROOT / lock).read_text(), re.M))

    assert versions("requirements-demo.lock") - versions("requirements.lock") == set()
    assert len(versions("requirements-uv.lock")) == 1
