"""Run one target under Atheris: `python -m fuzz.atheris_run TARGET [LIBFUZZER_OPTION ...]`."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["sparrowmq"]):
    from fuzz.targets import TARGETS

name = sys.argv.pop(1)
atheris.Setup(sys.argv, TARGETS[name].check)
atheris.Fuzz()
