"""The page of compatibility counts what the tests against foreign clients run."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "reference" / "compatibility.md").read_text()


def load(name: str) -> ModuleType:
    """The module of tests, which is not a member of a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests" / "interop" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # What it defines looks itself up here.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def counts(row: str) -> list[tuple[int, int]]:
    """Return what `N of M` says in the row that begins so."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {row}"))
    return [(int(passed), int(of)) for passed, of in re.findall(r"(\d+) of (\d+)", line)]


def test_the_page_counts_apache_s_integration_tests() -> None:
    suite = load("test_apache_suite")

    for version, found in suite.COUNTS.items():
        on = 2 if version == "4.9.7" else 1
        assert on * [2 * (found.tests,)] == counts(f"Apache's integration tests, {version}")
        left_out = re.search(rf"(\d+) (classes )?of {version} do not", PAGE)
        assert left_out is not None
        assert str(found.classes_left_out) == left_out[1]


def test_the_page_counts_the_checks_of_other_languages() -> None:
    go, js = load("test_go_client"), load("test_js_client")
    cpp = load("test_cpp_client")

    assert 2 * [2 * (len(go.CHECKS),)] == counts("Apache's Go client")
    assert [2 * (len(go.WITH_ACCESS_CONTROL),)] == counts("… with access control")
    assert 2 * [2 * (len(cpp.CHECKS),)] == counts("Apache's C++ client")
    assert 2 * [2 * (len(js.CHECKS),)] == counts("ali-ons")


def test_the_page_counts_the_commands_of_mqadmin() -> None:
    script = load("test_mqadmin_commands").SCRIPT

    for version in ("4.9.7", "5.5.0"):
        found = len([run for run in script if run.version in ("", version)])
        assert counts(f"`mqadmin` {version}") == 2 * [(found, found)]


def test_each_row_of_the_client_names_tests_that_are_there() -> None:
    rows = re.findall(r"^\| .+ \| (`test_\w+\.py::.+) \|$", PAGE, re.M)

    assert len(rows) >= 20
    for path, name in re.findall(r"`(test_\w+\.py)::(\w+)`", "".join(rows)):
        text = (ROOT / "tests" / "interop" / path).read_text()
        assert re.search(rf"^(async )?def {name}\(", text, re.M), (path, name)
