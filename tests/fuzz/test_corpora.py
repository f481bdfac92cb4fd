"""Every input that fuzzing kept, and the first seeds: no target fails, and none takes long."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tracemalloc
from itertools import islice
from pathlib import Path
from threading import Barrier

import pytest

from fuzz import __main__ as fuzz
from fuzz.__main__ import SANITIZED_VARIABLES
from fuzz.corpora import CORPORA, FAILURES, read_inputs
from fuzz.targets import TARGETS, Target
from gate.rows import ROWS
from golden import GoldenDirectory
from processor_time import measuring

SEEDS_REPLAYED = 50
# Of the processor, for inputs of at most a few kilobytes.
INPUT_MS_MAX = 50
INPUT_MEMORY_BYTES_MAX = 4 << 20
# What else runs may slow one run down.
ATTEMPTS = 3


def measure_ms(target: Target, data: bytes) -> float:
    with measuring() as taken:
        target.check(data)
    return taken.seconds * 1_000


def measure_bytes(target: Target, data: bytes) -> int:
    tracemalloc.start()
    target.check(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def inputs_of(name: str, golden: GoldenDirectory) -> list[bytes]:
    return [
        *islice(TARGETS[name].seeds(golden), SEEDS_REPLAYED),
        *read_inputs(CORPORA, name),
        *read_inputs(FAILURES, name),
    ]


@pytest.mark.parametrize("name", TARGETS)
def test_target_holds_for_every_kept_input(name: str, golden: GoldenDirectory) -> None:
    target, inputs = TARGETS[name], inputs_of(name, golden)
    assert inputs
    # What is made once, at the first use, is not the input's.
    target.check(inputs[0])
    slow: dict[str, float] = {}
    large: dict[str, int] = {}
    for data in inputs:
        elapsed_ms = measure_ms(target, data)
        if elapsed_ms > INPUT_MS_MAX:
            elapsed_ms = min(measure_ms(target, data) for _ in range(ATTEMPTS))
        if elapsed_ms > INPUT_MS_MAX:
            slow[data.hex()] = elapsed_ms
    for data in inputs[::10]:
        peak_bytes = measure_bytes(target, data)
        if peak_bytes > INPUT_MEMORY_BYTES_MAX:
            large[data.hex()] = peak_bytes

    assert slow == {}
    assert large == {}


def test_functions_in_c_hold_under_sanitizers() -> None:
    """The address sanitizer must be in a process from its start: all targets share one."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: cc")
    libraries = ("libasan.so", "libubsan.so")
    runtimes = [
        subprocess.check_output(["cc", f"-print-file-name={name}"], text=True).strip()
        for name in libraries
    ]
    # The compiler answers with the bare name if it has no such file.
    if not all(Path(runtime).is_absolute() for runtime in runtimes):
        pytest.skip("the C compiler has no sanitizers")
    names = [name for name, target in TARGETS.items() if target.is_in_c]
    environment = SANITIZED_VARIABLES | {"LD_PRELOAD": " ".join(runtimes)}
    replay = [sys.executable, __file__, *names]

    ended = subprocess.run(
        replay,
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stdout.split()) == (0, names), ended.stderr


def replay() -> None:
    """Replay the inputs of the targets that are named as arguments."""
    golden = GoldenDirectory(Path(__file__).parents[1] / "golden")
    for name in sys.argv[1:]:
        for data in inputs_of(name, golden):
            TARGETS[name].check(data)
        print(name)


if __name__ == "__main__":
    replay()


def test_as_many_targets_run_at_once_as_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    together = Barrier(2)

    def run_target(name: str, **_: object) -> bool:
        together.wait(30)
        return name != "header"

    monkeypatch.setattr(fuzz, "run_target", run_target)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)

    def run(*targets: str) -> int:
        monkeypatch.setattr(sys, "argv", ["fuzz", *targets])
        return fuzz.main()

    assert run("frame", "json", "body", "record") == 0
    assert run("frame", "header") == 1


def test_targets_that_held_are_noted_for_the_gate_and_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def run_target(name: str, **_: object) -> bool:
        ran.append(name)
        return name != "header" or ran.count(name) > 1

    monkeypatch.setattr(fuzz, "run_target", run_target)
    monkeypatch.setattr(fuzz, "notes_of_code", lambda name, _: tmp_path / name)
    monkeypatch.setattr(sys, "argv", ["fuzz", "frame", "header", "--seconds", "7", "--noted"])
    (row,) = (row for row in ROWS if row.name == "decoders")
    figures: list[str] = []
    for _ in range(2):
        fuzz.main()
        figures.append(row.figure(capsys.readouterr().out))

    assert sorted(ran) == ["frame", "header", "header"]
    assert figures == [f"2 targets for 7 s each, {failed} failed" for failed in (1, 0)]
