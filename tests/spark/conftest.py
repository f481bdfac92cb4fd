"""A cluster that does what a test tells it to."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import (
    BrokerData,
    ConsumerOffsetTable,
    QueueData,
    TopicList,
    TopicOffset,
    TopicRouteData,
    TopicStatsTable,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.headers import encode_header
from sparrowmq.protocol.properties import parse_properties
from sparrowmq.protocol.record import Record, decode_record, encode_record
from sparrowmq.protocol.signatures import is_signature_valid
from sparrowmq.serving.connections import Connection, Output, Reply
from sparrowmq.serving.remoting_server import RemotingServer

READ_AND_WRITE = 6
BORN_MS = 1_357_000_000_000


class FakeQueue:
    """The records of one queue, of which retention may have removed the first."""

    def __init__(self) -> None:
        self.min_offset = 0
        self.records: list[bytes] = []

    @property
    def max_offset(self) -> int:
        return len(self.records)


class FakeCluster:
    """A name server and brokers behind one port, with queues that tests write to and cut.

    `answers` holds scripted replies to the next pulls: a code with a next offset, None for an
    answer that never comes, or () for the queue's own. `pulls_max` is how many messages one pull
    gives. `same_codes` are tags whose hash code is that of every tag. `version` is the brokers'
    major one. `step_ms` is the time between two messages of a queue. `given_count` counts the
    messages that pulls gave. With `tells_times` the bounds of a queue have the time of its last
    message, as those of brokers.
    """

    def __init__(self) -> None:
        self.version = 5
        self.topics: dict[str, dict[tuple[str, int], FakeQueue]] = {}
        self.committed: dict[tuple[str, str, int], int] = {}
        self.answers: list[tuple[int, int] | tuple[()] | None] = []
        self.pulls_max = 2048
        self.same_codes: set[str] = set()
        self.pull_count = self.given_count = 0
        self.born_ms, self.step_ms = BORN_MS, 1
        self.request_codes: list[int] = []
        self.pull_groups: set[str] = set()
        # Of scripted answers.
        self.remark = "scripted"
        self.table_refusal: int | None = None
        self.tells_times = False
        # More queues than this are not a part of a topic's table: they can only be read.
        self.table_queues_max = 1 << 31
        self.signatures: list[bool] = []
        self._loop = asyncio.new_event_loop()
        self._server = RemotingServer(self)
        listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake cluster")
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._server.start(listening), self._loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def create_topic(self, topic: str, *, queues: int = 2, broker: str = "broker-a") -> None:
        held = self.topics.setdefault(topic, {})
        for queue_id in range(queues):
            held.setdefault((broker, queue_id), FakeQueue())

    def append(
        self, topic: str, queue_id: int, count: int, *, broker: str = "broker-a", size: int = 8
    ) -> None:
        """Add messages whose key is their topic, queue and offset."""
        queue = self.topics[topic][broker, queue_id]
        for offset in range(queue.max_offset, queue.max_offset + count):
            key = f"{topic}-{queue_id}-{offset}"
            record = Record(
                topic=topic,
                queue_id=queue_id,
                body=b"%0*d" % (size, offset),
                properties=f"KEYS\x01{key}\x02TAGS\x01tag{offset % 3}\x02UNIQ_KEY\x01id-{key}",
                born_timestamp_ms=BORN_MS + offset * self.step_ms,
                store_timestamp_ms=BORN_MS + offset * self.step_ms + 1,
                queue_offset=offset,
                position=offset * 200,
            )
            queue.records.append(bytes(encode_record(record)))

    def handle(
        self, command: RemotingCommand, connection: Connection, *, now_ms: int, timestamp_ms: int
    ) -> list[Output]:
        reply = self._reply(command)
        return [] if reply is None else [Reply(connection, reply)]

    def connection_closed(
        self, connection: Connection, *, now_ms: int, timestamp_ms: int
    ) -> list[Output]:
        return []

    def _reply(self, request: RemotingCommand) -> RemotingCommand | None:
        fields = dict(request.ext_fields or {})
        if request.header is not None:
            fields = dict(encode_header(request.header))
        self.request_codes.append(request.code)
        self.signatures.append(
            "Signature" in fields and is_signature_valid(fields, request.body, secret_key="hush")
        )
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return self._route(request, fields["topic"])
        if request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return response_to(request, body=encode_body(TopicList(topic_list=list(self.topics))))
        if request.code == RequestCode.GET_ALL_CONSUMER_OFFSET:
            table: dict[str, dict[int, int]] = {}
            for (group, name, number), offset in self.committed.items():
                table.setdefault(f"{name}@{group}", {})[number] = offset
            return response_to(request, body=encode_body(ConsumerOffsetTable(offset_table=table)))
        topic = self.topics.get(fields["topic"], {})
        if request.code == RequestCode.GET_TOPIC_STATS_INFO:
            return self._stats(request, fields["topic"], topic)
        queue_id = int(fields["queueId"])
        # One port stands for every broker: the queue's number tells which is meant.
        found = [queue for (_, number), queue in sorted(topic.items()) if number == queue_id]
        if not found:
            return response_to(request, ResponseCode.TOPIC_NOT_EXIST, remark="no such queue")
        (queue,) = found
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            key = fields["consumerGroup"], fields["topic"], queue_id
            self.committed[key] = int(fields["commitOffset"])
            return response_to(request)
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            committed = self.committed.get((fields["consumerGroup"], fields["topic"], queue_id))
            # As brokers do while the first message is in memory; 4.x does not know the wish.
            if self.version < 5 or fields.get("setZeroIfNotFound") != "false":
                committed = committed or 0
            if committed is None:
                return response_to(request, ResponseCode.QUERY_NOT_FOUND, remark="none")
            return response_to(request, ext_fields={"offset": str(committed)})
        if request.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            # Stored in the order of their offsets, and like Apache's brokers never past the last.
            since = (int(fields["timestamp"]) - (BORN_MS + 1)) // self.step_ms
            found_offset = max(queue.min_offset, min(since, queue.max_offset - 1))
            return response_to(request, ext_fields={"offset": str(found_offset)})
        if request.code == RequestCode.PULL_MESSAGE:
            return self._pull(request, fields, queue)
        is_min = request.code == RequestCode.GET_MIN_OFFSET
        assert is_min or request.code == RequestCode.GET_MAX_OFFSET
        offset = queue.min_offset if is_min else queue.max_offset
        return response_to(request, ext_fields={"offset": str(offset)})

    def _stats(
        self, request: RemotingCommand, name: str, topic: dict[tuple[str, int], FakeQueue]
    ) -> RemotingCommand:
        if self.table_refusal is not None:
            return response_to(request, self.table_refusal, remark="not for you")
        table = {
            MessageQueue(name, broker, number): TopicOffset(
                min_offset=queue.min_offset,
                max_offset=queue.max_offset,
                last_update_timestamp_ms=self._last_ms(queue) if self.tells_times else 0,
            )
            for (broker, number), queue in topic.items()
            if number < self.table_queues_max
        }
        return response_to(request, body=encode_body(TopicStatsTable(offset_table=table)))

    def _last_ms(self, queue: FakeQueue) -> int:
        return decode_record(queue.records[-1], 0).store_timestamp_ms if queue.records else 0

    def _route(self, request: RemotingCommand, topic: str) -> RemotingCommand:
        queues = self.topics.get(topic)
        if not queues:
            return response_to(request, ResponseCode.TOPIC_NOT_EXIST, remark=f"no {topic}")
        brokers = sorted({broker for broker, _ in queues})
        return response_to(
            request,
            body=encode_body(
                TopicRouteData(
                    broker_datas=[
                        BrokerData(cluster="C", broker_name=name, broker_addrs={0: self.address})
                        for name in brokers
                    ],
                    queue_datas=[
                        QueueData(
                            broker_name=name,
                            read_queue_nums=sum(broker == name for broker, _ in queues),
                            write_queue_nums=sum(broker == name for broker, _ in queues),
                            perm=READ_AND_WRITE,
                        )
                        for name in brokers
                    ],
                )
            ),
        )

    def _pull(
        self, request: RemotingCommand, fields: dict[str, str], queue: FakeQueue
    ) -> RemotingCommand | None:
        self.pull_count += 1
        self.pull_groups.add(fields["consumerGroup"])
        offset, body = int(fields["queueOffset"]), None
        scripted = self.answers.pop(0) if self.answers else ()
        if scripted is None:
            return None
        if scripted:
            code, following = scripted
        elif offset < queue.min_offset:
            code, following = ResponseCode.PULL_OFFSET_MOVED, queue.min_offset
        elif offset >= queue.max_offset:
            code, following = ResponseCode.PULL_NOT_FOUND, offset
        else:
            code = ResponseCode.SUCCESS
            count = min(int(fields["maxMsgNums"]), self.pulls_max)
            records = queue.records[offset : offset + count]
            following = offset + len(records)
            chosen = [record for record in records if self._matches(fields, record)]
            self.given_count += len(chosen)
            body = b"".join(chosen)
            if not body:
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return response_to(
            request,
            code,
            remark=self.remark if scripted else None,
            body=body or None,
            ext_fields={
                "suggestWhichBrokerId": "0",
                "nextBeginOffset": str(following),
                "minOffset": str(queue.min_offset),
                "maxOffset": str(queue.max_offset),
            },
        )

    def _matches(self, fields: dict[str, str], record: bytes) -> bool:
        """Filter by tags, and as brokers do by no more than their hash codes."""
        expression = fields["subscription"]
        if expression == "*":
            return True
        tag = parse_properties(decode_record(record, 0).properties).get("TAGS", "")
        return tag in expression or tag in self.same_codes


@pytest.fixture
def fake_cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    yield cluster
    cluster.close()
