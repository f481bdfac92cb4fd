"""The same requests, byte for byte, to Apache's servers and to ours: the answers are the same.

Left out of the comparison: addresses, times, message ids, the order of sets, and the remark of a
success (Java's is an accident; peers look at the code alone).
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from typing import Any

import pytest

from sparrowmq.protocol import fastjson
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, encode_frame
from sparrowmq.protocol.record import BatchEntry, decode_messages, encode_batch

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(600),
    # Our broker answers as 4.9 does.
    pytest.mark.parametrize("java", ["4.9.7"], indirect=True, scope="session"),
]

GROUP = "GID_same"
TOPIC = "same"
VOLATILE = re.compile(r"timestamp|msgid|message_id|clientaddr|counter", re.I)
QUIET_S = 0.3
# A position far past the end of any log here.
NOWHERE = 10**15


class Wire:
    """A blocking connection that speaks frames and nothing more."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._decoder = FrameDecoder()
        self._received: list[RemotingCommand] = []
        self._opaque = 0

    def ask(self, request: RemotingCommand) -> RemotingCommand:
        self._opaque += 1
        request.opaque = self._opaque
        self._socket.sendall(encode_frame(request))
        while True:
            for index, command in enumerate(self._received):
                if command.is_response and command.opaque == request.opaque:
                    return self._received.pop(index)
            self._receive()

    def _receive(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("closed by the peer")
        self._received += self._decoder.receive_data(data)

    def requests(self) -> list[RemotingCommand]:
        """What the server asks of us, up to a moment of silence."""
        self._socket.settimeout(QUIET_S)
        try:
            while True:
                self._receive()
        except TimeoutError:
            pass
        finally:
            self._socket.settimeout(10)
        requests, self._received = self._received, []
        return requests

    def close(self) -> None:
        self._socket.close()


def heartbeat(client_id: str, *topics: str, version: int = 1, group: str = GROUP) -> bytes:
    subscriptions = [
        {
            "classFilterMode": False,
            "codeSet": [],
            "expressionType": "TAG",
            "subString": "*",
            "subVersion": version,
            "tagsSet": [],
            "topic": topic,
        }
        for topic in topics
    ]
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": subscriptions,
        "unitMode": False,
    }
    return fastjson.dumps(
        {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
    )


def locks(client_id: str, *queue_ids: int) -> bytes:
    queues = [{"brokerName": "broker-a", "queueId": n, "topic": TOPIC} for n in queue_ids]
    return fastjson.dumps({"clientId": client_id, "consumerGroup": GROUP, "mqSet": queues})


def send_fields(queue_id: int, *, topic: str = TOPIC, properties: str = "", **more: Any) -> Any:
    fields = {"a": "GID_p", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0}
    return fields | {"g": 1, "h": 0, "i": properties, "j": 0, "k": "false", "m": "false"} | more


def pull_fields(queue_id: int, offset: int, *, topic: str = TOPIC, **more: Any) -> Any:
    fields = {"consumerGroup": GROUP, "topic": topic, "queueId": queue_id, "queueOffset": offset}
    fields |= {"maxMsgNums": 32, "sysFlag": 0, "commitOffset": 0, "suspendTimeoutMillis": 0}
    return fields | {"subVersion": 1, "expressionType": "TAG"} | more


def topic_fields(topic: str, *, queues: int = 4, perm: int = 6) -> Any:
    fields = {"topic": topic, "defaultTopic": "TBW102", "perm": perm, "order": "false"}
    fields |= {"readQueueNums": queues, "writeQueueNums": queues}
    return fields | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}


def offset_fields(queue_id: int, *, topic: str = TOPIC, **more: Any) -> Any:
    return {"consumerGroup": GROUP, "topic": topic, "queueId": queue_id} | more


def back_fields(offset: int, level: int) -> Any:
    fields = {"offset": offset, "group": GROUP, "delayLevel": level, "originTopic": TOPIC}
    return fields | {"originMsgId": "x", "unitMode": "false", "maxReconsumeTimes": 16}


class Transcript:
    """Step by step what a cluster answered, made comparable."""

    def __init__(self, cluster: Any) -> None:
        self.answers: dict[str, Any] = {}
        self._position = 1 << 60
        self._addresses = {cluster.broker: "BROKER", cluster.name_server: "NAMESERVER"}
        self._wires = {
            "ns": Wire(cluster.name_server),
            "one": Wire(cluster.broker),
            "two": Wire(cluster.broker),
        }
        try:
            self._names()
            self._sending()
            self._group()
            self._pulling()
            self._offsets()
            self._locking()
            self._sending_back()
            self._leaving()
        finally:
            for wire in self._wires.values():
                wire.close()

    def _names(self) -> None:
        self._ask("route of an unknown topic", "ns", 105, {"topic": "none"})
        self._ask("route of the template", "ns", 105, {"topic": "TBW102"})
        self._ask("cluster", "ns", 106)
        self._ask("absent key", "ns", 101, {"namespace": "a", "key": "b"})
        self._ask("unknown code at the broker", "one", 9999)
        self._ask("create a topic", "one", 17, topic_fields(TOPIC))
        self._ask("create a topic of a bad name", "one", 17, topic_fields("bad topic!"))
        self._ask("create a system topic", "one", 17, topic_fields("TBW102"))
        self._ask("create a write-only topic", "one", 17, topic_fields("writeonly", perm=2))
        self._ask("create a read-only topic", "one", 17, topic_fields("readonly", perm=4))
        self._ask("route of the new topic", "ns", 105, {"topic": TOPIC})

    def _sending(self) -> None:
        fields = send_fields(0, properties="TAGS\x01A\x02KEYS\x01k")
        answer = self._ask("send", "one", 310, fields, b"m0")
        # The message id ends in the position of the record.
        self._position = int((answer.ext_fields or {})["msgId"][-16:], 16)
        self._ask("send by v1", "one", 10, self._v1(0), b"m1")
        self._ask(
            "send with another tag", "one", 310, send_fields(0, properties="TAGS\x01B"), b"m2"
        )
        self._ask("send to a bad queue", "one", 310, send_fields(99), b"x")
        self._ask("send to no topic", "one", 310, send_fields(0, topic="none", c="none"), b"x")
        self._ask("send to a bad topic", "one", 310, send_fields(0, topic="bad topic!"), b"x")
        self._ask("send to an empty topic", "one", 310, send_fields(0, topic=""), b"x")
        self._ask("send to a long topic", "one", 310, send_fields(0, topic="t" * 128), b"x")
        schedule = send_fields(0, topic="SCHEDULE_TOPIC_XXXX")
        self._ask("send to the schedule", "one", 310, schedule, b"x")
        self._ask("send to a new topic", "one", 310, send_fields(0, topic="made", d=2), b"x")
        self._ask("send to a read-only topic", "one", 310, send_fields(0, topic="readonly"), b"x")
        # Apache registers a topic that a send made a moment after the answer.
        self._ask("route of the made topic", "ns", 105, {"topic": "made"}, patience_s=10)
        self._ask("send without a topic", "one", 310, {"a": "GID_p"}, b"x")
        self._ask("send without a header", "one", 310, None, b"x")
        self._ask("send without a body", "one", 310, send_fields(1))
        self._ask("send a delayed one", "one", 310, send_fields(3, properties="DELAY\x0118"), b"x")
        no_number = send_fields(3, properties="DELAY\x01soon")
        self._ask("send a delay that is not a number", "one", 310, no_number, b"x")
        self._ask("send to a queue that is not a number", "one", 310, send_fields(0, e="x"), b"x")
        half = send_fields(3, properties="TRAN_MSG\x01true", f=4)
        self._ask("send half without a group", "one", 310, half, b"x")
        half = send_fields(3, properties="TRAN_MSG\x01no", f=4)
        self._ask("send half and not half", "one", 310, half, b"x")
        batch = send_fields(0, topic="%RETRY%GID_batch", m="true")
        entry = encode_batch([BatchEntry(0, b"x", "")])
        self._ask("send a batch to a retry topic", "one", 320, batch, entry)

    def _v1(self, queue_id: int) -> dict[str, object]:
        fields: dict[str, object] = {"producerGroup": "GID_p", "topic": TOPIC, "flag": 7}
        fields |= {"defaultTopic": "TBW102"}
        fields |= {"defaultTopicQueueNums": 4, "queueId": queue_id, "sysFlag": 0}
        return fields | {"bornTimestamp": 1, "properties": "TAGS\x01A\x02own\x01value"}

    def _group(self) -> None:
        self._ask("members of an unknown group", "one", 38, {"consumerGroup": GROUP})
        self._ask("connections of an unknown group", "one", 203, {"consumerGroup": GROUP})
        self._ask("pull of an unknown member", "one", 11, pull_fields(0, 0))
        self._ask("first heartbeat", "one", 34, None, heartbeat("c1", TOPIC, "writeonly"))
        self._pushes("first heartbeat", "one")
        self._ask("again", "one", 34, None, heartbeat("c1", TOPIC, "writeonly"))
        self._pushes("again", "one")
        self._ask("second member", "two", 34, None, heartbeat("c2", TOPIC, "writeonly"))
        self._pushes("second member", "one")
        self._pushes("second member", "two")
        self._ask("members", "one", 38, {"consumerGroup": GROUP})
        self._ask("same id on another connection", "two", 34, None, heartbeat("c1", TOPIC))
        self._pushes("same id", "one")
        self._ask("members of one id", "one", 38, {"consumerGroup": GROUP})
        newer = heartbeat("c1", TOPIC, version=5)
        self._ask("newer version", "one", 34, None, newer)
        self._pushes("newer version", "two")
        self._ask("back to two ids", "two", 34, None, heartbeat("c2", TOPIC, version=5))
        self._ask("connections", "one", 203, {"consumerGroup": GROUP})
        self._ask("route of the retry topic", "ns", 105, {"topic": f"%RETRY%{GROUP}"})

    def _pulling(self) -> None:
        self._ask("pull", "one", 11, pull_fields(0, 0, subVersion=5))
        self._ask("pull two", "one", 11, pull_fields(0, 0, subVersion=5, maxMsgNums=2))
        own: dict[str, Any] = {"sysFlag": 4, "subscription": "B"}
        self._ask("pull one tag", "one", 11, pull_fields(0, 0, **own))
        own = {"sysFlag": 4, "subscription": "none"}
        self._ask("pull no tag", "one", 11, pull_fields(0, 0, **own))
        self._ask("pull at the end", "one", 11, pull_fields(0, 3, subVersion=5))
        self._ask("pull past the end", "one", 11, pull_fields(0, 9, subVersion=5))
        self._ask("pull below 0", "one", 11, pull_fields(0, -1, subVersion=5))
        self._ask("pull an empty queue", "one", 11, pull_fields(2, 0, subVersion=5))
        self._ask("pull an empty queue at 5", "one", 11, pull_fields(2, 5, subVersion=5))
        self._ask("pull a bad queue", "one", 11, pull_fields(9, 0, subVersion=5))
        self._ask("pull with an old version", "one", 11, pull_fields(0, 0, subVersion=9))
        self._ask("pull no topic", "one", 11, pull_fields(0, 0, topic="none"))
        self._ask("pull an unsubscribed topic", "one", 11, pull_fields(0, 0, topic="made"))
        self._ask("pull an unreadable topic", "one", 11, pull_fields(0, 0, topic="writeonly"))
        sql: dict[str, Any] = {"sysFlag": 4, "subscription": "a > 1", "expressionType": "SQL92"}
        self._ask("pull by SQL", "one", 11, pull_fields(0, 0, **sql))
        held = pull_fields(0, 3, subVersion=5, sysFlag=2, suspendTimeoutMillis=20_000)
        self._ask("pull that wakes", "one", 11, held, meanwhile=lambda: self._send_one("m3"))

    def _offsets(self) -> None:
        self._ask("offset never committed", "one", 14, offset_fields(0))
        self._ask("offset of no topic", "one", 14, offset_fields(0, topic="none"))
        self._ask("commit", "one", 15, offset_fields(0, commitOffset=2))
        self._ask("offset", "one", 14, offset_fields(0))
        self._ask("commit past the end", "one", 15, offset_fields(1, commitOffset=99))
        self._ask("offset past the end", "one", 14, offset_fields(1))
        for queue_id, topic in ((0, TOPIC), (2, TOPIC), (9, TOPIC), (0, "none")):
            fields = {"topic": topic, "queueId": queue_id}
            for name, code in (("max", 30), ("min", 31), ("earliest", 32)):
                self._ask(f"{name} of {topic}:{queue_id}", "one", code, fields)
            for timestamp in (0, 9_999_999_999_999):
                search = fields | {"timestamp": timestamp}
                self._ask(f"search {timestamp} of {topic}:{queue_id}", "one", 29, search)

    def _locking(self) -> None:
        self._ask("lock", "one", 41, None, locks("c1", 0, 1))
        self._ask("lock what another holds", "two", 41, None, locks("c2", 1, 2))
        self._ask("lock again", "one", 41, None, locks("c1", 0, 1, 2))
        self._ask("unlock another's", "two", 42, None, locks("c2", 0))
        self._ask("still locked", "two", 41, None, locks("c2", 0))
        self._ask("unlock", "one", 42, None, locks("c1", 0))
        self._ask("free again", "two", 41, None, locks("c2", 0))
        self._ask("lock a queue that is none", "one", 41, None, locks("c1", 77))

    def _sending_back(self) -> None:
        self._ask("send back", "one", 36, back_fields(self._position, 1))
        self._ask("send back to the dead letters", "one", 36, back_fields(self._position, -1))
        self._ask("send back nothing", "one", 36, back_fields(NOWHERE, 0))
        # Held until the message is there: Apache shows it a moment after the answer.
        own = {"sysFlag": 6, "subscription": "*", "suspendTimeoutMillis": 20_000}
        dlq = pull_fields(0, 0, topic=f"%DLQ%{GROUP}", **own)
        self._ask("pull the dead letter", "one", 11, dlq)
        retry = pull_fields(0, 0, topic=f"%RETRY%{GROUP}", **own)
        self._ask("pull the retried one", "one", 11, retry)
        self._ask("message by position", "one", 33, {"offset": self._position})
        self._ask("message by a bad position", "one", 33, {"offset": NOWHERE})

    def _leaving(self) -> None:
        self._wires["one"].requests()
        self._ask("leave", "two", 35, {"clientID": "c2", "consumerGroup": GROUP})
        self._pushes("leave", "one")
        self._ask("leave again", "two", 35, {"clientID": "c2", "consumerGroup": GROUP})
        self._pushes("leave again", "one")
        self._ask("members left", "one", 38, {"consumerGroup": GROUP})
        self._ask("third member", "two", 34, None, heartbeat("c3", TOPIC, version=5))
        self._wires["one"].requests()
        self._wires["two"].close()
        self._pushes("connection closed", "one")
        self._ask("members after the close", "one", 38, {"consumerGroup": GROUP})
        self._ask("delete a topic", "one", 215, {"topic": "made"})
        self._ask("make it again", "one", 17, topic_fields("made"))
        self._ask("end of a topic made again", "one", 30, {"topic": "made", "queueId": 0})

    def _send_one(self, body: str) -> None:
        self._wires["two"].ask(
            RemotingCommand(code=310, ext_fields=_texts(send_fields(0)), body=body.encode())
        )

    def _ask(
        self,
        step: str,
        wire: str,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes | None = None,
        meanwhile: Any = None,
        patience_s: float = 0,
    ) -> RemotingCommand:
        assert step not in self.answers
        request = RemotingCommand(code=code, ext_fields=_texts(fields), body=body)
        if meanwhile is not None:
            # Runs between the request and its answer: asked on another connection.
            self._wires["one"], held = Wire(self._address("BROKER")), self._wires["one"]
            held._opaque += 1
            request.opaque = held._opaque
            held._socket.sendall(encode_frame(request))
            time.sleep(QUIET_S)
            meanwhile()
            self._wires["one"].close()
            self._wires["one"] = held
            while not held._received:
                held._receive()
            answer = held._received.pop(0)
        else:
            answer = self._wires[wire].ask(request)
            deadline = time.monotonic() + patience_s
            while answer.code and time.monotonic() < deadline:
                time.sleep(QUIET_S)
                answer = self._wires[wire].ask(request)
        self.answers[step] = self._comparable(answer, code)
        return answer

    def _address(self, name: str) -> str:
        names: dict[str, str] = self._addresses
        return next(address for address, of in names.items() if of == name)

    def _pushes(self, step: str, wire: str) -> None:
        self.answers[f"{step}: pushed to {wire}"] = [
            (RequestCode(request.code).name, dict(request.ext_fields or {}), request.is_oneway)
            for request in self._wires[wire].requests()
        ]

    def _comparable(self, answer: RemotingCommand, code: int) -> dict[str, Any]:
        return {
            "code": answer.code,
            "remark": self._text(answer.remark) if answer.code else None,
            "fields": {
                name: "*" if VOLATILE.search(name) else self._text(value)
                for name, value in (answer.ext_fields or {}).items()
            },
            "body": self._body(answer.body, code),
        }

    def _text(self, text: str | None) -> str | None:
        for address, name in self._addresses.items():
            text = text.replace(address, name) if text else text
        return re.sub(r"127\.0\.0\.1:\d+", "CLIENT", text) if text else text

    def _body(self, body: bytes | None, code: int) -> Any:
        if not body:
            return None
        if code in (11, 33):
            return [
                {
                    "body": message.body,
                    "queue": message.queue,
                    "offset": message.queue_offset,
                    "times": message.reconsume_times,
                    "flag": message.flag,
                    "properties": {
                        name: "*" if VOLATILE.search(name) else value
                        for name, value in message.properties.items()
                        # The checksum of a whole record and the region: 5.x and ours have them,
                        # 4.9 has not.
                        if name not in ("__CRC32#", "MSG_REGION")
                    },
                }
                for message in decode_messages(body, broker_name="broker-a").messages
            ]
        return self._value(fastjson.loads(body), "")

    def _value(self, value: Any, name: str) -> Any:
        if VOLATILE.search(name):
            return "*"
        if isinstance(value, Mapping):
            return {key: self._value(item, str(key)) for key, item in value.items()}
        if isinstance(value, list):
            # Java's sets have no order.
            return sorted((self._value(item, "") for item in value), key=repr)
        return self._text(value) if isinstance(value, str) else value


def _texts(fields: Mapping[str, object] | None) -> dict[str, str] | None:
    return None if fields is None else {name: str(value) for name, value in fields.items()}


# What we answer otherwise, and why.
ON_PURPOSE = {
    "send to a read-only topic": "4.9 checks the broker's permission to write, not the topic's",
    "send without a topic": "4.9.7 reads an absent field as null; we name the field",
    "send without a header": "the same",
    "lock a queue that is none": "a lock of a queue that does not exist is refused",
    "send a delay that is not a number": "4.9.7 fails over it; we name it",
    "send to a queue that is not a number": "the same",
    "send half without a group": "4.9.7 stores what nobody can end",
    "send half and not half": "4.9.7 stores what no queue ever shows",
    "send a batch to a retry topic": "4.9.7 stores it, 5.x refuses it as well",
    "end of a topic made again": "it goes on: the log has the messages that it had before",
    "pull by SQL": "Apache's brokers filter by SQL92 if enablePropertyFilter is set; ours always",
}


def test_every_answer_of_ours_is_apaches(apache_cluster: Any, our_cluster: Any) -> None:
    theirs, ours = Transcript(apache_cluster).answers, Transcript(our_cluster).answers

    different = {step: (theirs[step], ours[step]) for step in theirs if theirs[step] != ours[step]}
    assert list(theirs) == list(ours)
    assert {step: both for step, both in different.items() if step not in ON_PURPOSE} == {}
    assert set(ON_PURPOSE) == set(different)
