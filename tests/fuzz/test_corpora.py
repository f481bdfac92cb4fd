"""Every input that fuzzing kept, and the first seeds: no target fails, and none takes long."""

from __future__ import annotations

import time
import tracemalloc
from itertools import islice

import pytest

from fuzz.corpora import CORPORA, FAILURES, read_inputs
from fuzz.targets import TARGETS, Target
from golden import GoldenDirectory

SEEDS_REPLAYED = 50
# Of the processor, for inputs of at most a few kilobytes.
INPUT_MS_MAX = 50
INPUT_MEMORY_BYTES_MAX = 4 << 20
# What else runs, garbage collection above all, may slow one run down.
ATTEMPTS = 3


def measure_ms(target: Target, data: bytes) -> float:
    begin_ns = time.process_time_ns()
    target.check(data)
    return (time.process_time_ns() - begin_ns) / 1e6


def measure_bytes(target: Target, data: bytes) -> int:
    tracemalloc.start()
    target.check(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("name", TARGETS)
def test_target_holds_for_every_kept_input(name: str, golden: GoldenDirectory) -> None:
    target = TARGETS[name]
    inputs = [
        *islice(target.seeds(golden), SEEDS_REPLAYED),
        *read_inputs(CORPORA, name),
        *read_inputs(FAILURES, name),
    ]
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
