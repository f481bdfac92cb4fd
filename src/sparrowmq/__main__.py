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
        from sparrowmq.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
    except RuntimeError as error:
        # So Python 3.11 reports an interrupt while it makes a class.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        sys.exit(_EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
