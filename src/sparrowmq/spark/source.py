"""The data source `rocketmq`: what `spark.read` and `spark.readStream` find under this name.

spark.readStream.format("rocketmq").option("nameServer", "127.0.0.1:9876")
    .option("topic", "flights").load()
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from sparrowmq.errors import ConfigError
from sparrowmq.spark.failures import clear
from sparrowmq.spark.options import SourceOptions, parse_options
from sparrowmq.spark.schema import columns_ddl


class RocketMQDataSource(DataSource):
    """Reads topics of RocketMQ: in a batch between two offsets, or as a stream."""

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

    def _options(self, schema: StructType, *, scope: str) -> SourceOptions:
        options = parse_options(self.options, scope=scope)
        if tuple(schema.fieldNames()) != options.columns:
            raise ConfigError(
                f"the schema has the columns {', '.join(schema.fieldNames())}; leave .schema(...) "
                f"out and choose columns by option 'columns' or 'profile'"
            )
        return options
