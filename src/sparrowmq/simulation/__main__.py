"""`python -m sparrowmq.simulation --seeds N [--start S]`: run seeds and print those that fail."""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from zlib import crc32

from sparrowmq.errors import ConfigError
from sparrowmq.simulation.faults import describe
from sparrowmq.simulation.run import SITUATIONS, RunOutcome, run_seed

_NAME = "python -m sparrowmq.simulation"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 0, or 1 if a seed failed."""
    options = _parse(arguments)
    # The faults are intended: the log lines about them say nothing new.
    logging.disable(logging.CRITICAL)
    only = None if options.only is None else [n for n in options.only.split(",") if n]
    failed = messages = transactions = duplicates = digest = 0
    reached: Counter[str] = Counter()
    for seed in range(options.start, options.start + options.seeds):
        try:
            outcome = run_seed(seed, only=only)
        except ConfigError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        messages += outcome.message_count
        transactions += outcome.transaction_count
        duplicates += outcome.duplicate_count
        reached.update(outcome.reached)
        digest = crc32(str(outcome.digest).encode(), digest)
        if options.verbose:
            _write(_line(outcome))
        if outcome.violation is not None:
            failed += 1
            _write(_line(outcome))
            chosen = "" if options.only is None else f" --only {options.only}"
            _write(f"    again: {_NAME} --seeds 1 --start {seed}{chosen}")
            for line in outcome.trace[-options.trace :] if options.trace else ():
                _write(f"    {line}")
    _write(
        f"{options.seeds} seeds, {failed} failed; {messages} messages and {transactions} half "
        f"messages acknowledged, {duplicates} delivered again; digest {digest:08x}"
    )
    _write("reached: " + ", ".join(f"{reached[name]} {name}" for name in SITUATIONS))
    return 1 if failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=_NAME, description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--only", help="leave out every fault but these: reset,partition,...")
    parser.add_argument("--trace", type=int, default=40, help="lines of a failure's trace")
    parser.add_argument("--verbose", action="store_true", help="print a line for every seed")
    return parser.parse_args(arguments)


def _line(outcome: RunOutcome) -> str:
    result = "ok" if outcome.violation is None else f"FAILED {outcome.violation}"
    return (
        f"seed {outcome.seed}: {result} ({outcome.virtual_ms / 1000:.1f} s, healed in "
        f"{outcome.healed_ms / 1000:.1f} s, {outcome.event_count} events, "
        f"{outcome.message_count} messages; faults: {describe(outcome.faults)})"
    )


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
