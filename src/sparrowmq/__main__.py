"""`python -m sparrowmq` is the command `sparrowmq`."""

from __future__ import annotations

from sparrowmq.cli.main import main

if __name__ == "__main__":
    main()
