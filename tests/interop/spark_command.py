"""The file that `docs/howto/spark-clusters.md` gives to spark-submit."""

from __future__ import annotations

from sparrowmq.cli.main import main

main()
