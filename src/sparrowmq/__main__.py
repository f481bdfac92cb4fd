"""The command `sparrowmq`, also as `python -m sparrowmq`.

Ctrl-C ends the command quietly from here on. So everything else is imported in `main`.
"""

from __future__ import annotations

import sys

# As in `cli/exit_codes.py`.
_EXIT_INTERRUPTED = 130


def main() -> None:
    """Load the command line, and run it."""
    try:
        import os
        import signal

        def end(*_: object) -> None:
            # An exception would come out of some imports as another one, or not at all.
            os._exit(_EXIT_INTERRUPTED)

        def end_no_more() -> None:
            if signal.getsignal(signal.SIGINT) is end:
                signal.signal(signal.SIGINT, signal.default_int_handler)

        # A shell has its background jobs ignore the signal.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, end)
        from sparrowmq.cli.main import main as run

        run(on_loaded=end_no_more)
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
