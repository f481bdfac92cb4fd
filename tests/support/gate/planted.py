"""Run the tests of planted mistakes, and write what found each: `python -m gate.planted`."""

from __future__ import annotations

import re
import sys
from collections.abc import Generator, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparrowmq.simulation.faults import Faults

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks/results"
# Tests whose ids name the mistakes.
NAMED = ("test_mistake_is_caught", "test_planted_mistake_is_found")
HEADS = ("| fault | room | found by | seeds |", "| 错误 | 模块 | 由谁发现 | 种子数 |")


class Fault(NamedTuple):
    """A row of the table."""

    name: str
    room: str
    found_by: str
    seeds: str


def kind_of(runs: Any) -> str:
    """Return the name of the faults of simulated runs: those that occur, or how they are drawn."""
    if not isinstance(runs, Faults):
        name: str = runs.__name__
        return name.removeprefix("draw_").removesuffix("_faults")
    rates = [each.name for each in fields(runs) if getattr(runs, each.name) != each.default]
    return ", ".join(rates) or "no fault"


def describe(nodeid: str, properties: Iterable[tuple[str, Any]]) -> Fault:
    """Return what a test of a planted mistake says."""
    # Of several places that a mistake is planted in, the first.
    known: dict[str, Any] = {}
    for name, value in properties:
        known.setdefault(name, value)
    path, _, test = nodeid.partition("::")
    function, _, case = test.rstrip("]").partition("[")
    words = re.sub(r"^test_|_is_caught$", "", function).replace("_", " ")
    name = case if function in NAMED else f"{words}: {case}" if case else words
    if function == "test_mistake_is_seen":
        name = known["place"]
    count, runs = known.get("seeds", ("", ""))
    found_by = f"`{known.get('found by', path)}`"
    if "kind" in known:
        drawn = "faults as drawn for " if runs == "as drawn" else ""
        found_by = f"simulation, {drawn}{known['kind']}"
    return Fault(name, known.get("room", ""), found_by, str(count))


def places_of(owner: Any, name: object, *instead: object) -> list[tuple[str, object]]:
    """Return the room and the place of what a test replaces; nothing if it is not ours."""
    if isinstance(owner, dict):
        held = (each for each in list(sys.modules) if _is_global_of(owner, each))
        return [("room", module.split(".")[1]) for module in sorted(held)[:1]]
    module = str(getattr(owner, "__module__", None) or getattr(owner, "__name__", ""))
    if not module.startswith("sparrowmq.") or not instead:
        return []
    words = getattr(instead[0], "__name__", "").replace("_", " ")
    place = f"{owner.__name__.rpartition('.')[2]}.{name}: {words}"
    return [("room", module.split(".")[1]), ("place", place)]


def _is_global_of(value: object, module: str) -> bool:
    names = vars(sys.modules[module]).values() if module.startswith("sparrowmq.") else ()
    return any(each is value for each in names)


class Notes:
    """A plug-in of pytest: notes where each test plants its mistake, and which tests passed."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """Note the first attribute of ours that the test replaces."""
        original, original_item = pytest.MonkeyPatch.setattr, pytest.MonkeyPatch.setitem

        def note(patch: pytest.MonkeyPatch, *given: Any, **options: Any) -> None:
            item.user_properties.extend(places_of(*given))
            original(patch, *given, **options)

        def note_item(patch: pytest.MonkeyPatch, *given: Any) -> None:
            item.user_properties.extend(places_of(*given))
            original_item(patch, *given)

        pytest.MonkeyPatch.setattr = note  # type: ignore[assignment, method-assign]
        pytest.MonkeyPatch.setitem = note_item  # type: ignore[assignment, method-assign]
        try:
            return (yield)
        finally:
            pytest.MonkeyPatch.setattr = original  # type: ignore[method-assign]
            pytest.MonkeyPatch.setitem = original_item  # type: ignore[method-assign]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that has found its mistake."""
        if report.when == "call" and report.passed:
            self.faults.append(describe(report.nodeid, report.user_properties))


def write(faults: Iterable[Fault], directory: Path) -> None:
    """Write the table of each language."""
    ordered = sorted(faults, key=lambda fault: (fault.room, fault.name, fault))
    rows = [f"| {' | '.join(each)} |" for each in ordered]
    for head, name in zip(HEADS, ("planted.md", "planted.zh.md"), strict=True):
        (directory / name).write_text("\n".join([head, "|---|---|---|---|", *rows]) + "\n")


def main() -> int:
    """Return pytest's exit code; the tables are written where every mistake is found."""
    notes = Notes()
    arguments = ["--rootdir", str(ROOT), str(ROOT / "tests"), "-m", "planted"]
    code = int(pytest.main(arguments, plugins=[notes]))
    if code == 0:
        write(notes.faults, RESULTS)
    return code


if __name__ == "__main__":
    sys.exit(main())
