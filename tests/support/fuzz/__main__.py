"""Look for inputs on which a target fails: `python -m fuzz [TARGET ...] --seconds 600`.

Atheris changes inputs and keeps those that reach new lines. Each target runs in a process of its
own, as many at once as there are cores, from golden vectors and the inputs kept so far. An input
that fails is kept for good, so that the tests fail until the fault is mended; of the others
`--keep` keeps the fewest that reach what all reach.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import subprocess
import sys
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from gate.parts import notes_of_code, run_parts

ROOT = Path(__file__).parents[3]
# An input that takes longer counts as a fault, and so does more memory in all. Rows of the gate may
# leave a target little of the processor.
INPUT_SECONDS_MAX = 100
MEMORY_MIB_MAX = 2_048
# Each object of Python's has memory of its own, with a fence around; Python ends with some in use.
SANITIZED_VARIABLES = {"PYTHONMALLOC": "malloc", "ASAN_OPTIONS": "detect_leaks=0"}


def main() -> int:
    """Run the targets that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all if none is named")
    parser.add_argument(
        "--seconds", type=int, default=600, help="of the processor for each target (default: 600)"
    )
    parser.add_argument("--keep", action="store_true", help="keep inputs that reach new lines")
    parser.add_argument("--noted", action="store_true", help="leave out what held on this code")
    options = parser.parse_args()
    from fuzz.targets import TARGETS

    unknown = sorted(set(options.targets) - set(TARGETS))
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    targets = options.targets or list(TARGETS)
    held = run_parts(
        partial(run_target, seconds=options.seconds, keeps=options.keep),
        targets,
        is_passed=bool,
        notes=notes_of_code(f"fuzz-{options.seconds}", "tests") if options.noted else None,
        processes=os.cpu_count() or 1,
    )
    failed = [name for name, holds in zip(targets, held, strict=True) if not holds]
    if failed:
        print(f"failed: {', '.join(failed)}; the inputs were added to tests/fuzz/failures")
    print(f"{len(targets)} targets for {options.seconds} s each, {len(failed)} failed")
    return 1 if failed else 0


def run_target(name: str, *, seconds: int, keeps: bool) -> bool:
    """Fuzz one target; tell whether no input failed."""
    from fuzz.corpora import CORPORA, FAILURES, read_inputs, write_inputs
    from fuzz.targets import TARGETS
    from golden import GoldenDirectory

    target = TARGETS[name]
    kept = [*read_inputs(CORPORA, name), *read_inputs(FAILURES, name)]
    with TemporaryDirectory(prefix="fuzz-") as temporary:
        directory = Path(temporary)
        seeds = [bytes(seed) for seed in target.seeds(GoldenDirectory(ROOT / "tests" / "golden"))]
        known, found = directory / "known", directory / "found"
        write_files(known, [*seeds, *kept])
        write_files(found, [])
        options = [
            f"-artifact_prefix={directory}/failed-",
            f"-timeout={INPUT_SECONDS_MAX}",
            f"-rss_limit_mb={MEMORY_MIB_MAX}",
            f"-max_len={target.input_bytes_max}",
            # The lines that an input reaches in C are not known, its comparisons are.
            f"-use_value_profile={int(target.is_in_c)}",
        ]
        program = write_program(directory / "run", name, sanitized=target.is_in_c)
        command: list[str | Path] = [program, *options]
        run = subprocess.run(
            [*command, f"--seconds={seconds}", found, known],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        told = f"{name}: {len(seeds)} seeds, {len(kept)} kept, {seconds} s\n{summary(run.stdout)}\n"
        # At once: other targets print too.
        print(told, end="", flush=True)
        failures = [path.read_bytes() for path in sorted(directory.glob("failed-*"))]
        if keeps:
            best = directory / "best"
            write_files(best, [])
            merge = [*command, "-merge=1", best, known, found]
            subprocess.run(merge, check=True, capture_output=True)
            write_inputs(CORPORA, name, [path.read_bytes() for path in best.iterdir()])
        if failures:
            write_inputs(FAILURES, name, [*read_inputs(FAILURES, name), *failures])
    return run.returncode == 0


def write_program(path: Path, name: str, *, sanitized: bool) -> Path:
    """Write a program that runs a target."""
    run = shlex.join([sys.executable, "-m", "fuzz.atheris_run", str(path), name])
    if sanitized:
        # libFuzzer with the runtime of the address sanitizer, as Atheris has it for extensions.
        atheris = importlib.util.find_spec("atheris")
        assert atheris is not None
        assert atheris.origin is not None
        runtime = Path(atheris.origin).parents[1] / "asan_with_fuzzer.so"
        variables = {"LD_PRELOAD": str(runtime), **SANITIZED_VARIABLES}
        run = (
            shlex.join(["env", *(f"{name}={text}" for name, text in variables.items())]) + f" {run}"
        )
    path.write_text(f'#!/bin/sh\nexec {run} "$@"\n')
    path.chmod(0o700)
    return path


def summary(log: str) -> str:
    """Return what a run's log says of the fault that was found, or of how far it came."""
    _, heading, fault = log.partition(" === ")
    lines = [line for line in log.splitlines() if line.startswith("#")]
    return heading + fault if heading else "".join(lines[-1:])


def write_files(directory: Path, inputs: list[bytes]) -> None:
    """Write each input into a file of its own, as libFuzzer reads them."""
    directory.mkdir()
    for data in inputs:
        (directory / sha256(data).hexdigest()).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
