"""The data source `rocketmq`, which Spark uses for reads and writes of this format.

spark.readStream.format("rocketmq").option("nameServer", "127.0.0.1:9876")
    .option("topic", "flights").load()

Tests: test_spark.py.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyspark
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from sparrowmq.errors import ConfigError, SparrowError
from sparrowmq.spark.body_schema import fields_ddl
from sparrowmq.spark.failures import as_clear, clear
from sparrowmq.spark.options import SourceOptions, parse_options
from sparrowmq.spark.schema import check_declared, columns_ddl
from sparrowmq.spark.shipping import Packed, pack
from sparrowmq.spark.sink_options import SinkOptions, check_columns, parse_sink_options

# Options of a stream that PySpark 4.1 cannot apply.
_LIMITS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")


_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"

# What Spark adds to the options of a stream's write, in lower case.
_ADDED = frozenset({"checkpointlocation", "path", "queryname"})

# Options that choose columns, in lower case.
_CHOICES = frozenset({"columns", "profile", "includeheaders"})


class RocketMQDataSource(DataSource):
    """Reads topics of RocketMQ, in a batch between two offsets or as a stream, and writes them."""

    def __reduce__(self) -> Packed:
        return pack(RocketMQDataSource, dict(self.options))

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "rocketmq"

    @clear
    def schema(self) -> str:
        """The columns chosen by `profile` or `columns`."""
        options = parse_options(self.options, scope="any")
        bodies = options.body_schema
        return columns_ddl(options.columns, "" if bodies is None else fields_ddl(bodies))

    @clear
    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of a batch."""
        options = self._options(schema, scope="batch")
        make: Callable[[SourceOptions], DataSourceReader]
        if options.store_path is not None:
            from sparrowmq.spark.store_reader import StoreReader

            make = StoreReader
        else:
            from sparrowmq.spark.batch_reader import RocketMQReader

            make = RocketMQReader
        if not _are_filters_pushed():
            return make(options)
        from sparrowmq.spark.pushed_filters import FilteringReader

        return FilteringReader(make, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Make the reader of a stream; for wrong options, a reader that raises at every call."""
        try:
            return self._stream_reader(schema)
        except SparrowError as error:
            return _RefusedStream(error)

    @clear
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Make the writer of a batch."""
        from sparrowmq.client.route_cache import RouteCache
        from sparrowmq.spark.topic_queues import connect
        from sparrowmq.spark.writer import RocketMQWriter, see_to_topic

        options = self._sink_options(schema, overwrite=overwrite, scope="batch")
        if options.topic is not None:
            # A batch fails at once, since a name is most likely wrong; a stream's tasks try again.
            connect(options).run(see_to_topic(options, options.topic, routes=RouteCache()))
        return RocketMQWriter(options)

    @clear
    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Make the writer of a stream."""
        _check_streams()
        from sparrowmq.spark.stream_writer import RocketMQStreamWriter

        return RocketMQStreamWriter(self._sink_options(schema, overwrite=overwrite, scope="stream"))

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._options(schema, scope="stream")
        if _has_limits():
            from sparrowmq.spark.stream_reader import RocketMQStreamReader

            return RocketMQStreamReader(options)
        _check_streams()
        given = {name.lower() for name in self.options}
        limits = [name for name in _LIMITS if name.lower() in given]
        if limits:
            raise ConfigError(
                f"option {limits[0]!r} needs PySpark 4.2 or newer; this is {pyspark.__version__}"
            )
        from sparrowmq.spark.unlimited_stream_reader import UnlimitedStreamReader

        return UnlimitedStreamReader(options)

    def _sink_options(self, schema: StructType, *, overwrite: bool, scope: str) -> SinkOptions:
        if overwrite:
            raise ConfigError("a topic cannot be overwritten; write with mode 'append'")
        given = {
            name: text
            for name, text in self.options.items()
            if scope == "batch" or name.lower() not in _ADDED
        }
        options = parse_sink_options(given, scope=scope)
        types = {each.name: each.dataType.simpleString() for each in schema.fields}
        check_columns(types, topic=options.topic)
        return options

    def _options(self, schema: StructType, *, scope: str) -> SourceOptions:
        """Check options and schema; the columns of a declared schema are the chosen columns."""
        options = parse_options(self.options, scope=scope)
        declared = {each.name: each.dataType.simpleString() for each in schema.fields}
        is_chosen = not _CHOICES.isdisjoint(map(str.lower, self.options))
        if is_chosen and tuple(declared) != options.columns:
            raise ConfigError(
                f"the schema has the columns {', '.join(declared)}, and the options choose "
                f"{', '.join(options.columns)}; leave the schema or the options out"
            )
        bodies = options.body_schema
        of_bodies = "" if bodies is None else StructType.fromJson(json.loads(bodies)).simpleString()
        check_declared(declared, of_bodies)
        if not all(each.nullable for each in schema.fields):
            raise ConfigError("a column is declared NOT NULL; leave that out, here any may be null")
        return replace(options, columns=tuple(declared))


class _RefusedStream(DataSourceStreamReader):
    """Raises an error at every call.

    Spark's planning process of a stream replaces an error of `streamReader` by its own:
    UnboundLocalError, no local variable 'reader'.
    """

    def __init__(self, error: SparrowError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raise the error."""
        raise as_clear(self._error)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Raise the error."""
        raise as_clear(self._error)

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """Raise the error."""
        raise as_clear(self._error)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the error."""
        raise as_clear(self._error)


def _are_filters_pushed() -> bool:
    """Return whether Spark passes conditions to the reader that this process plans.

    It has a module of its own for that, which no other process loads.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSHING in sys.modules or (spec is not None and spec.name == _PUSHING)


def _has_limits() -> bool:
    """Return whether Spark limits micro-batches and passes their starts, as from PySpark 4.2 on."""
    return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


def _check_streams() -> None:
    if not hasattr(datasource, "DataSourceStreamArrowWriter"):
        raise ConfigError(
            f"a stream needs PySpark 4.1 or newer; this is {pyspark.__version__}; read and "
            f"write batches, or install a newer one"
        )
