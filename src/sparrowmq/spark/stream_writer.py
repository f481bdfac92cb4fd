"""The writer of a stream; in its own module, since PySpark 4.0 has no base class for it.

Tests: test_sink.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from sparrowmq.spark.shipping import Packed, pack
from sparrowmq.spark.sink_options import SinkOptions
from sparrowmq.spark.writer import warn_of_abort, write_task


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def __reduce__(self) -> Packed:
        return pack(RocketMQStreamWriter, self._options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task of a micro-batch, in an executor."""
        return write_task(self._options, iterator, job=None)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: the brokers have acknowledged every message."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Warn that the messages already sent stay in the topic."""
        warn_of_abort(messages)
