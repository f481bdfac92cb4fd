"""The source and the sink over TLS, on our broker, which asks for a client certificate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from certificates import Certificates
from sparrowmq.calling.tls import client_context
from sparrowmq.errors import ConfigError
from sparrowmq.spark.connection_options import TlsFiles
from sparrowmq.spark.options import parse_options
from sparrowmq.spark.sink_options import parse_sink_options
from sparrowmq.testing import EmbeddedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BASE = {"nameServer": "127.0.0.1:9876", "topic": "T"}


@pytest.fixture
def cluster(certificates: Certificates, tmp_path: Path) -> Iterator[EmbeddedCluster]:
    options = (
        *("--tls-cert", str(certificates.server.path)),
        *("--tls-key", str(certificates.server.key)),
        *("--tls-client-ca", str(certificates.ca.path)),
    )
    tls = client_context(
        ca_file=certificates.ca.path,
        certificate_file=certificates.client.path,
        key_file=certificates.client.key,
    )
    with EmbeddedCluster(tmp_path / "data", options=options, tls=tls) as found:
        yield found


@pytest.mark.parametrize("parse", [parse_options, parse_sink_options])
def test_options_of_tls_are_taken_together(parse: Callable[..., Any]) -> None:
    given = {"useTLS": "true", "tlsCaFile": "ca.pem", "tlsCheckHostname": "false"}

    assert parse({**BASE, **given}, scope="batch").tls == TlsFiles("ca.pem", None, None, False)
    assert parse({**BASE, "useTLS": "false"}, scope="batch").tls is None
    assert parse(BASE, scope="batch").tls is None


@pytest.mark.parametrize("parse", [parse_options, parse_sink_options])
def test_file_without_use_tls_is_refused(parse: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="'tlsCaFile' needs option 'useTLS'"):
        parse({**BASE, "tlsCaFile": "ca.pem"}, scope="batch")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rows_are_written_and_read_by_tls(
    spark: SparkSession, cluster: EmbeddedCluster, certificates: Certificates, tmp_path: Path
) -> None:
    cluster.create_topic("T_tls", queues=4)
    options = {
        "nameServer": cluster.name_server,
        "topic": "T_tls",
        "useTLS": "true",
        "tlsCaFile": str(certificates.ca.path),
        "tlsCertificateFile": str(certificates.client.path),
        "tlsKeyFile": str(certificates.client.key),
    }
    written = spark.range(500).selectExpr("cast(id as string) as body")
    written.write.format("rocketmq").options(**options).mode("append").save()

    batch = spark.read.format("rocketmq").options(**options).load()
    query = (
        spark.readStream.format("rocketmq")
        .options(**options, startingOffsets="earliest")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "table"))
    )
    query.awaitTermination()
    streamed = spark.read.parquet(str(tmp_path / "table"))

    expected = sorted(b"%d" % number for number in range(500))
    assert sorted(bytes(row.body) for row in batch.select("body").collect()) == expected
    assert sorted(bytes(row.body) for row in streamed.select("body").collect()) == expected
    key = certificates.client.key.read_text().splitlines()[1]
    kept = [
        path.read_text("latin-1") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()
    ]
    assert not any(key in text for text in kept)
    del options["tlsCaFile"]
    with pytest.raises(Exception, match="certificate is not trusted"):
        spark.read.format("rocketmq").options(**options).load().count()
