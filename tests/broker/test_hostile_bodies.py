"""No request with a body of JSON takes the broker or the name server long, whatever it holds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sparrowmq.nameserver.name_server import NameServer
from sparrowmq.protocol.bodies import PLAIN_MARKS_MAX
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.fastjson import MARKS_MAX
from sparrowmq.serving.connections import Connection, Reply, Written

# 50 ms are meant, and kept by far on a quiet machine; without bounds most of these took seconds.
SECONDS_MAX = 0.5
BODY_BYTES_MAX = 4 << 20

CODES = [
    RequestCode.HEART_BEAT,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
]
PLAIN = b'{"clientID":"c","clientId":"c","consumerGroup":"g","groupName":"g",'
DIALECT = b"{clientID:'c',clientId:'c',consumerGroup:'g',groupName:'g',"
REFERENCES = DIALECT + b"a:{brokerName:'b',queueId:0,topic:'T'},mqSet:["


def repeat(start: bytes, item: bytes, end: bytes, count: int) -> bytes:
    return start + b",".join([item] * count) + end


def fill(start: bytes, item: bytes, end: bytes) -> bytes:
    """Return a body as large as a request may have."""
    return repeat(start, item, end, (BODY_BYTES_MAX - len(start) - len(end)) // (len(item) + 1))


QUEUE = b'{"brokerName":"b","queueId":0,"topic":"T"}'
HOSTILE = {
    "references": fill(REFERENCES, b'{"$ref":"$.a"}', b"]}"),
    "references at the limit": repeat(REFERENCES, b'{"$ref":"$.a"}', b"]}", MARKS_MAX // 5 - 20),
    "empty objects": fill(PLAIN + b'"mqSet":[', b"{}", b"]}"),
    "empty objects nobody wants": fill(PLAIN + b'"x":[', b"{}", b"]}"),
    "queues": fill(PLAIN + b'"mqSet":[', QUEUE, b"]}"),
    "queues at the limit": repeat(PLAIN + b'"mqSet":[', QUEUE, b"]}", MARKS_MAX // 7 - 20),
    "numbers": fill(DIALECT + b"x:[", b"0", b"]}"),
    "numbers at the limit": repeat(DIALECT + b"x:[", b"0", b"]}", MARKS_MAX - 30),
    "fractions at the limit": repeat(DIALECT + b"x:[", b"1.5e3", b"]}", MARKS_MAX - 30),
    "depth": b'{"a":' * 800_000,
    "depth of lists": b"[" * BODY_BYTES_MAX,
    "one text": PLAIN + b'"x":"' + b"a" * (BODY_BYTES_MAX - 100) + b'"}',
    "escapes": DIALECT + b"x:'" + b"\\u0041" * 600_000 + b"'}",
    "escapes at the limit": DIALECT + b"x:'" + b"\\u0041" * (MARKS_MAX - 30) + b"'}",
    "blanks": DIALECT + b" " * (BODY_BYTES_MAX - 100) + b"}",
    "nulls": fill(PLAIN + b'"producerDataSet":[', b'{"groupName":null}', b"]}"),
    "groups": fill(PLAIN + b'"consumerDataSet":[', b'{"groupName":"p"}', b"]}"),
    "groups at the limit": repeat(
        PLAIN + b'"consumerDataSet":[', b'{"groupName":"p"}', b"]}", PLAIN_MARKS_MAX // 3 - 20
    ),
}
PEER = Connection(1, "10.0.0.1:5", bytes(8))


@pytest.mark.parametrize("name", HOSTILE)
def test_broker_answers_a_hostile_body_soon(rig: Any, name: str) -> None:
    for code in CODES:
        command = RemotingCommand(code=code, body=HOSTILE[name])
        begin = time.process_time()

        outputs = rig.broker.handle(command, PEER, now_ms=0, timestamp_ms=0)

        assert time.process_time() - begin < SECONDS_MAX
        # Locks are answered once they are written.
        assert len([output for output in outputs if isinstance(output, Reply | Written)]) <= 1


@pytest.mark.parametrize("name", HOSTILE)
def test_name_server_answers_a_hostile_registration_soon(name: str) -> None:
    server = NameServer()
    fields = {"brokerName": "b", "brokerAddr": "10.0.0.1:1", "clusterName": "c", "brokerId": "0"}
    fields |= {"haServerAddr": "", "bodyCrc32": "0", "compressed": "false"}
    command = RemotingCommand(
        code=RequestCode.REGISTER_BROKER, ext_fields=fields, body=HOSTILE[name], version=399
    )
    begin = time.process_time()

    outputs = server.handle(command, PEER, now_ms=0, timestamp_ms=0)

    assert time.process_time() - begin < SECONDS_MAX
    assert isinstance(outputs[0], Reply)
