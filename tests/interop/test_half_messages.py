"""Why the Spark sink uses no transactions: what Apache's broker does with half messages.

docs/decisions/exactly-once-sink.md rests on these facts.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from types import ModuleType
from typing import Any

import pytest

from sparrowmq import Admin, MessageQueue
from sparrowmq.errors import SparrowError
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, encode_frame
from sparrowmq.protocol.message_id import decode_offset_msg_id
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

COMMIT, ROLLBACK = 8, 12
ABANDONED = "TRANS_CHECK_MAX_TIME_TOPIC"
CHECK_WITHIN_S = 60


@pytest.fixture(scope="module")
def apache(java: Any, rig: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    # It asks back after 0.2 s, and gives up after having asked once.
    cluster = rig.ApacheCluster(
        java,
        tmp_path_factory.mktemp("half") / "store",
        transactionCheckInterval=1_000,
        transactionTimeOut=200,
        transactionCheckMax=1,
    )
    cluster.start()
    yield cluster
    cluster.kill()


def ask(cluster: Any, code: int, fields: dict[str, str], body: bytes | None = None) -> Any:
    host, _, port = cluster.broker.rpartition(":")
    request = RemotingCommand(code=code, ext_fields=fields, body=body, opaque=1)
    with closing(socket.create_connection((host, int(port)), timeout=30)) as peer:
        peer.sendall(encode_frame(request))
        decoder = FrameDecoder()
        while True:
            for reply in decoder.receive_data(peer.recv(1 << 16)):
                assert reply.code == 0, reply.remark
                return reply.ext_fields


def send_half(cluster: Any, topic: str) -> dict[str, str]:
    """Send a half message as one whose process dies at once; return what ends it."""
    key = "7F00000100096B1A3D5C2768F7848F01"
    properties = f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01GID_dead\x02"
    fields = {"a": "GID_dead", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "4", "g": "1"}
    fields |= {"h": "0", "i": properties, "j": "0", "k": "false", "m": "false"}
    answer = ask(cluster, RequestCode.SEND_MESSAGE_V2, fields, b"half")
    return {
        "producerGroup": "GID_dead",
        "topic": topic,
        "tranStateTableOffset": answer["queueOffset"],
        "commitLogOffset": str(decode_offset_msg_id(answer["msgId"])[1]),
        "msgId": key,
        "transactionId": key,
    }


def end(cluster: Any, half: dict[str, str], how: int) -> None:
    ask(cluster, RequestCode.END_TRANSACTION, half | {"commitOrRollback": str(how)})


def count(cluster: Any, topic: str) -> int:
    with Admin(name_server=cluster.name_server) as admin:
        return admin.max_offset(MessageQueue(topic, "broker-a", 0))


def test_a_commit_that_is_repeated_puts_the_message_there_twice(apache: Any) -> None:
    topic = apache.create_topic("repeated", queues=1)
    half = send_half(apache, topic)
    assert count(apache, topic) == 0

    for _ in range(2):
        end(apache, half, COMMIT)

    wait_until("two of one message", lambda: count(apache, topic) == 2)


def test_a_rollback_does_not_keep_a_late_commit_from_putting_the_message_there(
    apache: Any,
) -> None:
    topic = apache.create_topic("late", queues=1)
    half = send_half(apache, topic)

    end(apache, half, ROLLBACK)
    end(apache, half, COMMIT)

    wait_until("a message rolled back and committed", lambda: count(apache, topic) == 1)


def test_a_half_message_of_a_dead_producer_is_put_aside(apache: Any) -> None:
    topic = apache.create_topic("dead", queues=1)
    before = count_abandoned(apache)

    send_half(apache, topic)

    wait_until("put aside", lambda: count_abandoned(apache) > before, timeout_s=CHECK_WITHIN_S)
    assert count(apache, topic) == 0


def count_abandoned(cluster: Any) -> int:
    try:
        return count(cluster, ABANDONED)
    except SparrowError:
        return 0
