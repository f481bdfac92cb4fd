"""Target: whatever servers answer, a client's operation ends, with a result or an error of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

from fuzz.inputs import choose, to_command, to_messages
from hostile import HANG_UP, BrokerScript, NameServerScript
from play import Play, make_publisher
from sparrowmq.calling.effects import Operation
from sparrowmq.client.directory import Directory
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.operations import administer, groups, handover, offsets, snapshot
from sparrowmq.client.operations.pull import PullReply, corrected_offset, make_pull_header, pull
from sparrowmq.client.operations.send import send, send_batch
from sparrowmq.client.publisher import Publisher
from sparrowmq.errors import ConnectionLost, SparrowError
from sparrowmq.model import Message, MessageQueue
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand, response_to

NAME_SERVER, BROKER = "ns:1", "a:1"
QUEUE = MessageQueue("T", "broker-a", 0)
CLIENT_ID = "10.0.0.1@1"
ANSWER_CODES = (0, 1, 2, 17, 19, 20, 21, 22, 24, 206)
# What an operation may ask for, and wait between, whatever it is answered.
REQUESTS_MAX = 400
SLEPT_MS_MAX = 60_000


def _publisher() -> Publisher:
    return make_publisher(client_id=CLIENT_ID, drawn=0)


def _directory() -> Directory:
    return Directory(name_servers=NameServers((NAME_SERVER,)))


def _pull() -> Operation[Any]:
    result: PullReply = yield from pull(
        BROKER, make_pull_header("G", QUEUE, offset=5, count_max=32)
    )
    to_messages(result.records)
    return corrected_offset(5, result)


class Asked(NamedTuple):
    """An operation, and the request in it that is answered by the input."""

    operation: Callable[[], Operation[Any]]
    code: RequestCode


R = RequestCode
OPERATIONS = (
    Asked(_pull, R.PULL_MESSAGE),
    Asked(lambda: send(_publisher(), Message("T", b"x")), R.GET_ROUTEINFO_BY_TOPIC),
    Asked(lambda: send(_publisher(), Message("T", b"x")), R.SEND_MESSAGE_V2),
    Asked(
        lambda: send_batch(_publisher(), [Message("T", b"x"), Message("T", b"y")]),
        R.SEND_BATCH_MESSAGE,
    ),
    Asked(lambda: offsets.query_offset(BROKER, "G", queue=QUEUE), R.QUERY_CONSUMER_OFFSET),
    Asked(lambda: offsets.max_offset(BROKER, QUEUE), R.GET_MAX_OFFSET),
    Asked(
        lambda: handover.lock_batch(BROKER, "G", client_id=CLIENT_ID, queues=[QUEUE]),
        R.LOCK_BATCH_MQ,
    ),
    Asked(lambda: administer.consumer_ids(_directory(), "G"), R.GET_BROKER_CLUSTER_INFO),
    Asked(lambda: administer.consumer_ids(_directory(), "G"), R.GET_CONSUMER_LIST_BY_GROUP),
    Asked(lambda: administer.group_connections(_directory(), "G"), R.GET_CONSUMER_CONNECTION_LIST),
    Asked(lambda: groups.list_groups(_directory()), R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
    *(
        Asked(lambda: snapshot.take_snapshot(_directory(), "G", interval_ms=1_000), code)
        for code in (
            R.GET_CONSUMER_CONNECTION_LIST,
            R.GET_CONSUMER_LIST_BY_GROUP,
            R.GET_CONSUME_STATS,
            R.GET_TOPIC_STATS_INFO,
            R.GET_CONSUMER_RUNNING_INFO,
            R.GET_ROUTEINFO_BY_TOPIC,
        )
    ),
)


def check_answer(data: bytes) -> None:
    """An operation ends, without too many requests or too long a wait."""
    asked, rest = choose(data, OPERATIONS)
    answer_code, rest = choose(rest, ANSWER_CODES)
    name_server, broker = NameServerScript(), BrokerScript()
    name_server.brokers["broker-a"] = BROKER
    name_server.add_topic("T", queues=2)
    broker.add_messages("T", b"1", b"2")
    broker.members["G"] = [CLIENT_ID]

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == asked.code:
            lie = to_command(answer_code, rest)
            return response_to(request, answer_code, ext_fields=lie.ext_fields, body=lie.body)
        script = name_server if address == NAME_SERVER else broker
        honest = script.answer(request)
        if not isinstance(honest, RemotingCommand):
            assert honest is None or honest is HANG_UP
            raise ConnectionLost("the connection was lost", address=address)
        return honest

    driver = Play(answer)
    with contextlib.suppress(SparrowError):
        driver(asked.operation())
    assert len(driver.requests) <= REQUESTS_MAX
    assert sum(driver.slept_ms) <= SLEPT_MS_MAX
