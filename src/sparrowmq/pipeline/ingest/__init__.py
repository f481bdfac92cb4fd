"""The job `ingest`: copies topics into a Parquet table, partitioned by date, each message once.

from sparrowmq.pipeline import ingest
result = ingest.run(session, ingest.IngestSettings(
    name_server="127.0.0.1:9876", topic="flights", out="flights-out"))
"""

from __future__ import annotations

from sparrowmq.pipeline.ingest.job import Batch, IngestResult, IngestSettings, run
from sparrowmq.pipeline.ingest.report import main_table, render

__all__ = ["Batch", "IngestResult", "IngestSettings", "main_table", "render", "run"]
