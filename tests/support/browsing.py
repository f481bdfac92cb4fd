"""A broker whose messages are browsed, without sockets: their times, and answers one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from play import Play, PlayedTask
from sparrowmq.calling.effects import Join, Operation, Spawn, Wait
from sparrowmq.model import MessageExt
from sparrowmq.protocol.bodies import BrokerData, QueueData, TopicRouteData, encode_body
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.record import Record, encode_record

NOON_MS = 1_700_000_000_000


class Broker:
    """A broker with a queue for each list of times at which its messages were stored.

    Args:
        begin: the first offset that the queues still have.

    Attributes:
        committed: the offsets of groups, by group and queue id.
        tags: the tags of messages, by their offset.
    """

    def __init__(self, *queues: Sequence[int], begin: int = 0) -> None:
        self.queues = queues
        self.begin = begin
        self.committed: dict[tuple[str, int], int] = {}
        self.tags: dict[int, str] = {}

    def __call__(self, address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            count = len(self.queues)
            route = TopicRouteData(
                broker_datas=[BrokerData(broker_name="a", broker_addrs={0: "a:1"})],
                queue_datas=[QueueData(broker_name="a", read_queue_nums=count, perm=6)],
            )
            return response_to(request, body=encode_body(route))
        fields = request.ext_fields or {}
        if request.code == RequestCode.QUERY_MESSAGE:
            return response_to(request, ResponseCode.QUERY_NOT_FOUND)
        queue_id = int(fields["queueId"])
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            offset = self.committed.get((fields["consumerGroup"], queue_id))
            if offset is None:
                return response_to(request, ResponseCode.QUERY_NOT_FOUND)
            return response_to(request, ext_fields={"offset": str(offset)})
        stored_ms = self.queues[queue_id]
        if request.code == RequestCode.GET_MIN_OFFSET:
            return response_to(request, ext_fields={"offset": str(self.begin)})
        if request.code == RequestCode.GET_MAX_OFFSET:
            return response_to(request, ext_fields={"offset": str(len(stored_ms))})
        if request.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            wanted_ms = int(fields["timestamp"])
            # As RocketMQ 4: the last message for a later time.
            at = next((n for n, at_ms in enumerate(stored_ms) if at_ms >= wanted_ms), None)
            return response_to(
                request, ext_fields={"offset": str(len(stored_ms) - 1 if at is None else at)}
            )
        assert request.code == RequestCode.PULL_MESSAGE
        begin = int(fields["queueOffset"])
        if begin < self.begin:
            return self._answer(request, ResponseCode.PULL_OFFSET_MOVED, self.begin)
        end = min(begin + int(fields["maxMsgNums"]), len(stored_ms))
        if begin == end:
            return self._answer(request, ResponseCode.PULL_NOT_FOUND, end)
        records = [
            encode_record(
                Record(
                    topic="T",
                    queue_id=queue_id,
                    body=b"x",
                    properties=f"TAGS\x01{self.tags.get(offset, 'usual')}",
                    queue_offset=offset,
                    position=1_000 * offset + queue_id,
                    store_timestamp_ms=stored_ms[offset],
                )
            )
            for offset in range(begin, end)
        ]
        return self._answer(request, ResponseCode.SUCCESS, end, b"".join(records))

    def _answer(
        self, request: RemotingCommand, code: int, following: int, body: bytes | None = None
    ) -> RemotingCommand:
        queue_id = int((request.ext_fields or {})["queueId"])
        fields = {
            "nextBeginOffset": following,
            "minOffset": self.begin,
            "maxOffset": len(self.queues[queue_id]),
            "suggestWhichBrokerId": 0,
        }
        texts = {name: str(value) for name, value in fields.items()}
        return response_to(request, code, ext_fields=texts, body=body)


class OneByOne(Play):
    """The answers come one by one: the next of them while one is being taken."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.under_way: deque[PlayedTask] = deque()

    def carry_out(self, effect: Any) -> Any:
        found = super().carry_out(effect)
        if isinstance(effect, Spawn) and effect.name == "browse":
            found.done = False
            self.under_way.append(found)
        elif isinstance(effect, Wait | Join) and self.under_way:
            self.under_way.popleft().done = True
        return found

    async def run(self, operation: Operation[Any]) -> Any:
        return self(operation)


def times_of(messages: Sequence[MessageExt]) -> list[int]:
    return [message.store_timestamp_ms - NOON_MS for message in messages]
