"""Run one target under Atheris: `python -m fuzz.atheris_run COMMAND TARGET [OPTION ...]`.

Options are libFuzzer's, and `--seconds=600`: how long, by the processor. libFuzzer counts time by
the clock, and other programs may leave a target little of the processor. It merges corpora in
processes that it starts by COMMAND, a program that runs this module.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import time

import atheris

with atheris.instrument_imports(include=["sparrowmq"]):
    from fuzz.targets import TARGETS

# A longer run of one input counts as a fault.
INPUT_SECONDS_MAX = 5

parser = argparse.ArgumentParser()
parser.add_argument("command")
parser.add_argument("target")
parser.add_argument("--seconds", type=float, default=math.inf)
given, options = parser.parse_known_args()
target = TARGETS[given.target]


def check(data: bytes) -> None:
    """Check an input, and its time."""
    begun_s = time.process_time()
    target.check(data)
    now_s = time.process_time()
    assert now_s - begun_s <= INPUT_SECONDS_MAX, "the input takes too long"
    if now_s >= until_s:
        # libFuzzer ends after this input.
        os.kill(os.getpid(), signal.SIGUSR1)


# What is made once, at the first use, is not an input's: its time has a bound.
target.check(b"")
until_s = time.process_time() + given.seconds
atheris.Setup([given.command, *options], check)
atheris.Fuzz()
