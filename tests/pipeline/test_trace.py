"""What our clients trace, read by the job that looks for duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from sparrowmq.client.tracer import Tracer
from sparrowmq.pipeline.duplicates.records import split_trace
from sparrowmq.protocol.trace import ConsumedCode, TracedType, consumed, delivered, published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def test_what_the_encoder_writes_comes_back(spark: SparkSession) -> None:
    tracer = Tracer(publisher=None, group="GID_c")  # type: ignore[arg-type]
    for number in range(3):
        names = {"group": "GID_c", "request_id": f"R{number}", "msg_id": f"M{number}"}
        timestamp_ms = 1_700_000_000_000 + number
        tracer.add(
            [
                published(
                    timestamp_ms=timestamp_ms,
                    cost_ms=1,
                    region="DefaultRegion",
                    group="GID_p",
                    topic="orders",
                    msg_id=f"M{number}",
                    offset_msg_id="O",
                    tags="",
                    keys=("k",),
                    store_host="127.0.0.1:10911",
                    body_bytes=5,
                    kind=TracedType.NORMAL,
                    is_success=number != 2,
                ),
                delivered(
                    **names,
                    timestamp_ms=timestamp_ms,
                    region="DefaultRegion",
                    reconsume_times=number,
                    keys=("k",),
                ),
                consumed(
                    **names,
                    timestamp_ms=timestamp_ms,
                    cost_ms=1,
                    keys=("k",),
                    code=ConsumedCode.SUCCESS,
                ),
            ]
        )
    taken = tracer.take()
    assert taken is not None
    trace = spark.createDataFrame(
        [(bytearray(taken[0].body), "127.0.0.1:5000")], "body binary, bornHost string"
    )

    records, produced = split_trace(trace)

    host = "127.0.0.1:5000"
    assert [
        (row.msgId, row.consumerGroup, row.clientId, row.topic, row.reconsumeTimes)
        for row in records.orderBy("msgId").collect()
    ] == [
        ("M0", "GID_c", host, "orders", 0),
        ("M1", "GID_c", host, "orders", 1),
        ("M2", "GID_c", host, None, 2),
    ]
    assert [row.msgId for row in produced.orderBy("msgId").collect()] == ["M0", "M1"]
