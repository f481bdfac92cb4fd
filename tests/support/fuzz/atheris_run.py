"""Run one target under Atheris: `python -m fuzz.atheris_run COMMAND TARGET [LIBFUZZER_OPTION ...]`.

libFuzzer merges corpora in processes that it starts by COMMAND, a program that runs this module.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["sparrowmq"]):
    from fuzz.targets import TARGETS

_, command, name, *options = sys.argv
# What is made once, at the first use, is not an input's: its time has a bound.
TARGETS[name].check(b"")
atheris.Setup([command, *options], TARGETS[name].check)
atheris.Fuzz()
