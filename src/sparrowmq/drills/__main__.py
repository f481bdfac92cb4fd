"""One drill as a process: `python -m sparrowmq.drills kill` prints its report as a line of JSON.

`decode_report` reads the line. Progress and errors are lines on stderr. The exit code is 0 after
the drill, 1 after an error, and 128 and the signal's number after SIGINT or SIGTERM.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from functools import partial

from sparrowmq.drills.drill import encode_report, run_drill
from sparrowmq.drills.kinds import QUEUE_COUNTS, RATES, DrillKind
from sparrowmq.errors import SparrowError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the drill of the command line."""
    parser = argparse.ArgumentParser(prog="python -m sparrowmq.drills")
    parser.add_argument("drill", choices=list(DrillKind), type=DrillKind)
    parser.add_argument("--queues", type=int, default=8, help="queues of the topic")
    parser.add_argument("--rate", type=int, default=200, help="messages sent a second")
    options = parser.parse_args(arguments)
    for name, value, allowed in (
        ("--queues", options.queues, QUEUE_COUNTS),
        ("--rate", options.rate, RATES),
    ):
        if value not in allowed:
            parser.error(f"{name} is {value}: it must be {allowed[0]} to {allowed[-1]}")
    try:
        say = partial(print, file=sys.stderr, flush=True)
        report = run_drill(
            options.drill, queue_count=options.queues, rate=options.rate, on_event=say
        )
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except SparrowError as error:
        raise SystemExit(str(error)) from error
    sys.stdout.buffer.write(encode_report(report) + b"\n")


if __name__ == "__main__":
    main()
