"""Fills a broker with many topics, groups and members, over one connection for each client id.

A member is a line in a heartbeat: a client id is in all groups, so that 20 connections make the
46,000 members of 2,300 groups of 20. Each connection answers the broker for its members.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Self

from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import (
    ConsumerData,
    ConsumerRunningInfo,
    HeartbeatData,
    ProcessQueueInfo,
    SubscriptionData,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.framing import FrameDecoder, encode_frame
from sparrowmq.strategies.registry import strategy_from
from sparrowmq.testing import EmbeddedCluster

QUEUES = 4
# Requests under way over one connection.
_WINDOW = 64
_GROUPS_PER_HEARTBEAT = 500


def cpu_s(pid: int) -> float:
    """Return the processor seconds that a process has taken since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def topic_of(group: int, topics: int) -> str:
    """Return the topic that a group consumes."""
    return f"topic-{group % topics:03}"


def group_of(number: int) -> str:
    """Return the name of a group."""
    return f"GID_{number:04}"


@asynccontextmanager
async def large_cluster(
    *, topics: int, groups: int, members: int
) -> AsyncGenerator[EmbeddedCluster]:
    """Run a broker with topics of four queues, and groups with members of one topic each.

    Each group has committed 0 of one message in the last queue, and has consumed the others.
    """
    with EmbeddedCluster(flush="async") as cluster:
        async with _Line(cluster) as line:
            await line.ask(_topics(topics))
            await line.ask(_messages(topics))
            await line.ask(_offsets(groups, topics))
        names = [f"10.0.0.{n:02}@1" for n in range(members)]
        consumed = {group_of(n): topic_of(n, topics) for n in range(groups)}
        async with AsyncExitStack() as lines:
            for name in names:
                line = await lines.enter_async_context(_Line(cluster, name, names, consumed))
                await line.ask(line.heartbeats())
            yield cluster


def _topics(topics: int) -> Iterator[RemotingCommand]:
    for number in range(topics):
        fields = {"topic": topic_of(number, topics), "defaultTopic": "TBW102", "perm": "6"}
        fields |= {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES)}
        fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        yield RemotingCommand(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields)


def _messages(topics: int) -> Iterator[RemotingCommand]:
    for number in range(topics):
        for queue in range(QUEUES):
            fields = {"a": "GID_p", "b": topic_of(number, topics), "c": "TBW102", "d": str(QUEUES)}
            fields |= {"e": str(queue), "f": "0", "g": "1795252251857", "h": "0", "i": ""}
            fields |= {"j": "0", "k": "false", "m": "false"}
            yield RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=b"x")


def _offsets(groups: int, topics: int) -> Iterator[RemotingCommand]:
    for number in range(groups):
        for queue in range(QUEUES):
            fields = {"consumerGroup": group_of(number), "topic": topic_of(number, topics)}
            fields |= {"queueId": str(queue), "commitOffset": str(int(queue < QUEUES - 1))}
            yield RemotingCommand(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields)


class _Line:
    """A connection to the broker: of an administrator, or of a client id that is in all groups."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        client_id: str = "",
        ids: Sequence[str] = (),
        consumed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._cluster = cluster
        self._client_id = client_id
        self._ids = ids
        self._consumed = consumed
        self._allocate = strategy_from("AVG").allocate
        self._answers: asyncio.Queue[RemotingCommand] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        host, _, port = self._cluster.broker.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        self._task = asyncio.create_task(self._receive())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._task
        await self._writer.wait_closed()

    async def ask(self, requests: Iterable[RemotingCommand]) -> None:
        """Send requests, some at a time; fails if one is refused."""
        waiting = 0
        for request in requests:
            self._writer.write(encode_frame(request))
            waiting += 1
            if waiting == _WINDOW:
                await self._take()
                waiting -= 1
        for _ in range(waiting):
            await self._take()

    async def _take(self) -> None:
        answer = await self._answers.get()
        assert answer.code == 0, answer.remark

    def heartbeats(self) -> Iterator[RemotingCommand]:
        """Return heartbeats of a size that a broker takes, which together name all groups."""
        groups = list(self._consumed.items())
        for begin in range(0, len(groups), _GROUPS_PER_HEARTBEAT):
            beat = HeartbeatData(
                client_id=self._client_id,
                consumer_data_set=[
                    ConsumerData(
                        group_name=group,
                        subscription_data_set=[SubscriptionData(topic=topic, sub_string="*")],
                    )
                    for group, topic in groups[begin : begin + _GROUPS_PER_HEARTBEAT]
                ],
            )
            yield RemotingCommand(code=RequestCode.HEART_BEAT, body=encode_body(beat))

    async def _receive(self) -> None:
        decoder = FrameDecoder()
        while data := await self._reader.read(1 << 20):
            for command in decoder.receive_data(data):
                if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                    self._writer.write(encode_frame(self._describe(command)))
                elif command.is_response:
                    self._answers.put_nowait(command)

    def _describe(self, request: RemotingCommand) -> RemotingCommand:
        group = (request.ext_fields or {})["consumerGroup"]
        topic = self._consumed[group]
        queues = [MessageQueue(topic, "broker-a", n) for n in range(QUEUES)]
        share = self._allocate(group, self._client_id, queues, self._ids) or []
        info = ConsumerRunningInfo(
            properties={"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
            subscription_set=[SubscriptionData(topic=topic, sub_string="*")],
            mq_table={queue: ProcessQueueInfo() for queue in share},
        )
        return response_to(request, body=encode_body(info))
