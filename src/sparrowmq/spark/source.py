"""The data source `rocketmq`: what reads and writes of Spark find under this name.

spark.readStream.format("rocketmq").option("nameServer", "127.0.0.1:9876")
    .option("topic", "flights").load()
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from sparrowmq.errors import ConfigError
from sparrowmq.spark.failures import clear
from sparrowmq.spark.options import SourceOptions, parse_options
from sparrowmq.spark.schema import columns_ddl
from sparrowmq.spark.shipping import Packed, pack
from sparrowmq.spark.sink_options import SinkOptions, check_columns, parse_sink_options


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
        return columns_ddl(parse_options(self.options, scope="any").columns)

    @clear
    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of a batch."""
        options = self._options(schema, scope="batch")
        if options.store_path is not None:
            from sparrowmq.spark.store_reader import StoreReader

            return StoreReader(options)
        from sparrowmq.spark.batch_reader import RocketMQReader

        return RocketMQReader(options)

    @clear
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Make the reader of a stream."""
        from sparrowmq.spark.stream_reader import RocketMQStreamReader

        return RocketMQStreamReader(self._options(schema, scope="stream"))

    @clear
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Make the writer of a batch."""
        from sparrowmq.spark.writer import RocketMQWriter

        return RocketMQWriter(self._sink_options(schema, overwrite=overwrite, scope="batch"))

    @clear
    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Make the writer of a stream."""
        from sparrowmq.spark.writer import RocketMQStreamWriter

        return RocketMQStreamWriter(self._sink_options(schema, overwrite=overwrite, scope="stream"))

    def _sink_options(self, schema: StructType, *, overwrite: bool, scope: str) -> SinkOptions:
        if overwrite:
            raise ConfigError("a topic cannot be overwritten; write with mode 'append'")
        # Spark adds these two to every write of a stream.
        given = {
            name: text
            for name, text in self.options.items()
            if scope == "batch" or name.lower() not in ("checkpointlocation", "path")
        }
        options = parse_sink_options(given, scope=scope)
        types = {each.name: each.dataType.simpleString() for each in schema.fields}
        check_columns(types, topic=options.topic)
        return options

    def _options(self, schema: StructType, *, scope: str) -> SourceOptions:
        options = parse_options(self.options, scope=scope)
        if tuple(schema.fieldNames()) != options.columns:
            raise ConfigError(
                f"the schema has the columns {', '.join(schema.fieldNames())}; leave .schema(...) "
                f"out and choose columns by option 'columns' or 'profile'"
            )
        return options
