"""Whatever a request holds, the machines answer it and raise nothing."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparrowmq.broker.broker import PROCESSORS
from sparrowmq.nameserver import name_server
from sparrowmq.nameserver.name_server import NameServer
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.record import BatchEntry, encode_batch
from sparrowmq.serving.connections import Connection, Reply, Written
from steps import made

NAMES = [
    *("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"),
    *("topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "offset"),
    *("suspendTimeoutMillis", "subscription", "subVersion", "expressionType", "consumerGroup"),
    *("timestamp", "clientID", "producerGroup", "group", "delayLevel", "maxReconsumeTimes"),
    *("defaultTopic", "readQueueNums", "writeQueueNums", "perm", "topicFilterType", "order"),
    *("groupName", "removeOffset", "brokerName", "brokerAddr", "clusterName", "brokerId"),
    *("haServerAddr", "compressed", "namespace", "key", "value", "cluster", "maxMsgBytes"),
]
NUMBERS = ["0", "1", "-1", "3", "2147483647", "-2147483648", "9223372036854775807", "99999999999"]
TEXTS = [
    *("", "T", "%RETRY%G", "%DLQ%G", "TBW102", "SCHEDULE_TOPIC_XXXX", "G", "bad name", "*", "||"),
    *("A || B", "TAG", "SQL92", "true", "x", "DELAY\x013", "WAIT\x01true\x02TAGS\x01A"),
    *("DELAY\x01-5", "é" * 100, "SINGLE_TAG", "\x01\x02\x01"),
]
FIELDS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(NUMBERS + TEXTS), max_size=14)
FULL = st.fixed_dictionaries({name: st.sampled_from(NUMBERS + TEXTS) for name in NAMES})
JSON_BODIES = st.recursive(
    st.none() | st.integers(-5, 5) | st.sampled_from(TEXTS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("clientID", "consumerDataSet", "producerDataSet", "groupName", "topic"),
                    *("subscriptionDataSet", "clientId", "consumerGroup", "mqSet", "queueId"),
                    *("brokerName", "subscriptionData", "group", "topicConfigSerializeWrapper"),
                    *("topicConfigTable", "dataVersion", "retryQueueNums", "subString"),
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
).map(lambda value: json.dumps(value).encode())
BODIES = st.one_of(
    st.none(),
    st.binary(min_size=1, max_size=40),
    JSON_BODIES,
    st.just(encode_batch([BatchEntry(0, b"x", "TAGS\x01A"), BatchEntry(0, b"y", "")])),
)
PEER = Connection(1, "10.0.0.1:5", bytes([10, 0, 0, 1, 0, 0, 0, 5]))


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    code=st.sampled_from(sorted(PROCESSORS)),
    fields=st.none() | FIELDS | FULL,
    body=BODIES,
    version=st.sampled_from([0, 36, 121, 399, 500]),
)
def test_broker_answers_any_request(
    rig: Any, code: int, fields: dict[str, str] | None, body: bytes | None, version: int
) -> None:
    command = RemotingCommand(code=code, ext_fields=fields, body=body, version=version)
    before = len(rig.outputs)

    rig.handle(PEER, command)
    rig.work()
    rig.host.tick()

    held = len(rig.broker.state.holds)
    rig.broker.connection_closed(PEER, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
    assert len(rig.replies(rig.outputs[before:])) + held == 1
    assert len(rig.broker.state.pending) == 0


@given(
    code=st.sampled_from(sorted(name_server.PROCESSORS)),
    fields=st.none() | FIELDS | FULL,
    body=BODIES,
    version=st.sampled_from([0, 36, 121, 399, 500]),
)
def test_name_server_answers_any_request(
    code: int, fields: dict[str, str] | None, body: bytes | None, version: int
) -> None:
    server = NameServer()
    command = RemotingCommand(code=code, ext_fields=fields, body=body, version=version)

    outputs = made(server.handle(command, PEER, now_ms=0, timestamp_ms=0))

    assert len([output for output in outputs if isinstance(output, Reply | Written)]) == 1
    server.connection_closed(PEER, now_ms=0, timestamp_ms=0)
    assert list(server.routes.broker_names()) == []
