"""A name server and a broker that answer well until a test has them lie.

A *script* answers requests from a few tables in memory, as far as a client needs it. A test puts a
*lie* in the place of the answer to one request code: a function of the request and of the answer
that would be right, so that a lie says only what it changes:

    broker.lies[RequestCode.PULL_MESSAGE] = lambda request, honest: altered(
        honest, nextBeginOffset=str(1 << 62)
    )

A lie returns an answer, bytes that are written as they are, None for silence, or `HANG_UP`.

`HostileCluster` serves both scripts over sockets. Without sockets, `script.answer(request)` is a
function of values, which any driver of operations may call (the fixture `play` is one).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Literal, Self

import msgspec

from frame_server import FrameServer, Peer
from sparrowmq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumerListBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    QueueData,
    TopicRouteData,
    decode_body,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.framing import encode_frame
from sparrowmq.protocol.headers import PULL_SUSPEND
from sparrowmq.protocol.record import Record, encode_record

BROKER_NAME = "broker-a"
READ_AND_WRITE = 6


class _HangUp(Enum):
    HANG_UP = "HANG_UP"


HANG_UP: Final = _HangUp.HANG_UP
Answer = RemotingCommand | bytes | Literal[_HangUp.HANG_UP] | None
Lie = Callable[[RemotingCommand, RemotingCommand | None], Answer]


def altered(honest: RemotingCommand | None, **fields: str) -> RemotingCommand:
    """Return an answer with other ext fields."""
    assert honest is not None
    return msgspec.structs.replace(honest, ext_fields={**(honest.ext_fields or {}), **fields})


def record(
    topic: str, queue_id: int, queue_offset: int, body: bytes = b"x", **fields: Any
) -> bytes:
    """Return a record as a broker would store it."""
    given: dict[str, Any] = {"topic": topic, "queue_id": queue_id, "queue_offset": queue_offset}
    given |= {"position": 1_000 * queue_offset, "body": body}
    return bytes(encode_record(Record(**given | fields)))


class Script:
    """Answers requests by their code; `lies` come in the place of what is right.

    Args:
        honest: by request code, what gives the right answer; others are answered with SUCCESS.
    """

    def __init__(
        self, honest: dict[int, Callable[[RemotingCommand], RemotingCommand | None]]
    ) -> None:
        self._honest = honest
        self._lock = threading.Lock()
        self.lies: dict[int, Lie] = {}
        self.requests: list[RemotingCommand] = []
        # What clients have answered to requests of the server.
        self.answered: list[RemotingCommand] = []

    def answer(self, request: RemotingCommand) -> Answer:
        """Return what the server says to a request."""
        with self._lock:
            self.requests.append(request)
            respond = self._honest.get(request.code, response_to)
            honest = respond(request)
            lie = self.lies.get(request.code)
            return honest if lie is None else lie(request, honest)

    def count(self, code: int) -> int:
        """Return how many requests of a code came so far."""
        return sum(request.code == code for request in list(self.requests))


class NameServerScript(Script):
    """A name server that knows the topics of `routes`."""

    def __init__(self) -> None:
        self.routes: dict[str, TopicRouteData] = {}
        self.brokers: dict[str, str] = {}
        super().__init__(
            {
                RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
                RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
            }
        )

    def add_topic(self, topic: str, *, queues: int = 1) -> None:
        """Have every known broker serve a topic."""
        self.routes[topic] = TopicRouteData(
            broker_datas=[_broker_data(name, at) for name, at in self.brokers.items()],
            queue_datas=[
                QueueData(
                    broker_name=name,
                    read_queue_nums=queues,
                    write_queue_nums=queues,
                    perm=READ_AND_WRITE,
                )
                for name in self.brokers
            ],
        )

    def _route(self, request: RemotingCommand) -> RemotingCommand:
        route = self.routes.get((request.ext_fields or {})["topic"])
        if route is None:
            return response_to(request, ResponseCode.TOPIC_NOT_EXIST)
        return response_to(request, body=encode_body(route))

    def _cluster(self, request: RemotingCommand) -> RemotingCommand:
        info = ClusterInfo(
            broker_addr_table={name: _broker_data(name, at) for name, at in self.brokers.items()},
            cluster_addr_table={"c": list(self.brokers)},
        )
        return response_to(request, body=encode_body(info))


def _broker_data(name: str, address: str) -> BrokerData:
    return BrokerData(cluster="c", broker_name=name, broker_addrs={0: address})


class BrokerScript(Script):
    """A broker that keeps records by topic and queue id, and what groups commit.

    A pull that finds nothing is held for ever.
    """

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], list[bytes]] = {}
        self.committed: dict[tuple[str, str, int], int] = {}
        self.commits: list[int] = []
        self.members: dict[str, list[str]] = {}
        super().__init__(
            {
                RequestCode.HEART_BEAT: self._heartbeat,
                RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
                RequestCode.LOCK_BATCH_MQ: self._lock_queues,
                RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
                RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
                RequestCode.GET_MIN_OFFSET: lambda request: _offset(request, 0),
                RequestCode.GET_MAX_OFFSET: lambda request: _offset(
                    request, len(self._of(request))
                ),
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda request: _offset(request, 0),
                RequestCode.PULL_MESSAGE: self._pull,
                RequestCode.SEND_MESSAGE_V2: self._send,
                RequestCode.SEND_BATCH_MESSAGE: self._send,
                RequestCode.GET_CONSUMER_RUNNING_INFO: _not_online,
                RequestCode.GET_CONSUMER_CONNECTION_LIST: _not_online,
            }
        )

    def add_messages(self, topic: str, *bodies: bytes, queue_id: int = 0) -> None:
        """Store messages in one queue."""
        queue = self.records.setdefault((topic, queue_id), [])
        queue += [record(topic, queue_id, len(queue) + n, body) for n, body in enumerate(bodies)]

    def _of(self, request: RemotingCommand) -> list[bytes]:
        fields = request.ext_fields or {}
        return self.records.get((fields["topic"], int(fields["queueId"])), [])

    def _heartbeat(self, request: RemotingCommand) -> RemotingCommand:
        data = decode_body(HeartbeatData, request.body)
        for consumer in data.consumer_data_set:
            self.members[consumer.group_name] = [data.client_id]
        return response_to(request)

    def _members(self, request: RemotingCommand) -> RemotingCommand:
        ids = self.members.get((request.ext_fields or {})["consumerGroup"], [])
        return response_to(request, body=encode_body(ConsumerListBody(consumer_id_list=ids)))

    def _lock_queues(self, request: RemotingCommand) -> RemotingCommand:
        wanted = decode_body(LockBatchRequestBody, request.body).mq_set
        return response_to(request, body=encode_body(LockBatchResponseBody(lock_ok_mq_set=wanted)))

    def _query_offset(self, request: RemotingCommand) -> RemotingCommand:
        offset = self.committed.get(_group_and_queue(request))
        if offset is None:
            return response_to(request, ResponseCode.QUERY_NOT_FOUND)
        return _offset(request, offset)

    def _update_offset(self, request: RemotingCommand) -> RemotingCommand:
        offset = int((request.ext_fields or {})["commitOffset"])
        self.committed[_group_and_queue(request)] = offset
        self.commits.append(offset)
        return response_to(request)

    def _pull(self, request: RemotingCommand) -> RemotingCommand | None:
        fields = request.ext_fields or {}
        queue, offset = self._of(request), int(fields["queueOffset"])
        found = queue[offset : offset + int(fields["maxMsgNums"])]
        answer = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(min(offset, len(queue)) + len(found)),
            "minOffset": "0",
            "maxOffset": str(len(queue)),
        }
        if found:
            return response_to(request, ext_fields=answer, body=b"".join(found))
        if offset > len(queue):
            return response_to(request, ResponseCode.PULL_OFFSET_MOVED, ext_fields=answer)
        if int(fields["sysFlag"]) & PULL_SUSPEND:
            return None
        return response_to(request, ResponseCode.PULL_NOT_FOUND, ext_fields=answer)

    def _send(self, request: RemotingCommand) -> RemotingCommand:
        fields = request.ext_fields or {}
        topic, queue_id = fields["b"], int(fields["e"])
        offset = len(self.records.get((topic, queue_id), []))
        self.add_messages(topic, request.body or b"", queue_id=queue_id)
        answer = {"msgId": "0" * 32, "queueId": str(queue_id), "queueOffset": str(offset)}
        return response_to(request, ext_fields=answer)


def _group_and_queue(request: RemotingCommand) -> tuple[str, str, int]:
    fields = request.ext_fields or {}
    return fields["consumerGroup"], fields["topic"], int(fields["queueId"])


def _offset(request: RemotingCommand, offset: int) -> RemotingCommand:
    return response_to(request, ext_fields={"offset": str(offset)})


def _not_online(request: RemotingCommand) -> RemotingCommand:
    return response_to(request, ResponseCode.CONSUMER_NOT_ONLINE)


class HostileCluster:
    """Both scripts behind sockets of the loopback interface, and a topic of one queue.

    Args:
        topic: the topic's name.
        queues: how many queues it has.
    """

    def __init__(self, topic: str = "T", *, queues: int = 1) -> None:
        self.topic = topic
        self.name_server, self.broker = NameServerScript(), BrokerScript()
        self._servers = [
            FrameServer(_serving(script)) for script in (self.name_server, self.broker)
        ]
        self.address, self.broker_address = (server.address for server in self._servers)
        self.name_server.brokers[BROKER_NAME] = self.broker_address
        self.name_server.add_topic(topic, queues=queues)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.stop()

    def ask_client(self, request: RemotingCommand) -> None:
        """Send a request to every client that is connected to the broker."""
        for peer in self._servers[1].peers:
            peer.send(encode_frame(request))


def _serving(script: Script) -> Callable[[Peer, RemotingCommand], None]:
    def serve(peer: Peer, request: RemotingCommand) -> None:
        if request.is_response:
            script.answered.append(request)
            return
        answer = script.answer(request)
        if isinstance(answer, _HangUp):
            peer.close()
        elif isinstance(answer, bytes):
            peer.send(answer)
        elif answer is not None and not request.is_oneway:
            peer.send(encode_frame(answer))

    return serve
