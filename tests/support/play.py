"""A driver without sockets, for the tests of operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sparrowmq.calling.call_run import CallRun
from sparrowmq.calling.effects import (
    Call,
    CallEach,
    Cancel,
    Invoke,
    Join,
    Now,
    Oneway,
    Operation,
    Sleep,
    Spawn,
    Timestamp,
    Wait,
)
from sparrowmq.client.assembly import make_subscriber
from sparrowmq.client.config import ConsumerConfig, ProducerConfig
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.publisher import Publisher
from sparrowmq.client.queue_selector import QueueSelector
from sparrowmq.client.subscriber import RebalanceCallbacks, Subscriber
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.message_id import UniqIdGenerator
from sparrowmq.protocol.subscription import parse_subscription

T = TypeVar("T")

Handler = Callable[[str, RemotingCommand], RemotingCommand]


def make_publisher(*, client_id: str = "c", drawn: int = 1, **settings: Any) -> Publisher:
    """Return a publisher with the name server ns:1, which draws one number whenever it draws."""
    return Publisher(
        config=ProducerConfig(group="GP", client_id=client_id, **settings),
        name_servers=NameServers(("ns:1",)),
        ids=UniqIdGenerator(bytes(4), 1, process_number=2),
        selector=QueueSelector(lambda: drawn),
    )


def make_idle_subscriber(group: str = "G", **settings: Any) -> Subscriber:
    """Return a consumer with the name server ns:1, whose listener does nothing."""
    return make_subscriber(
        group,
        name_server="ns:1",
        listener=lambda messages, context: None,
        callbacks=RebalanceCallbacks(),
        is_async=False,
        **settings,
    )


def make_unrun_subscriber(group: str, *topics: str, expression: str = "*") -> Subscriber:
    """Return a consumer of topics with the name server n:1 and the client id `me`.

    Nothing runs it, and its subscriptions have the version 7.
    """
    return Subscriber(
        config=ConsumerConfig(group=group, client_id="me"),
        name_servers=NameServers(("n:1",)),
        subscriptions={
            topic: parse_subscription(topic, expression, sub_version=7) for topic in topics
        },
        listener=lambda *_: None,
        callbacks=RebalanceCallbacks(),
        report=lambda _: None,
    )


class PlayedTask:
    """A spawned operation: it has been run to its end already."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = True
        self.result: Any = None
        self.error: BaseException | None = None


class Play:
    """Runs operations against a function in the place of all servers, on a clock of its own.

    Args:
        handler: answers a request to an address, or raises the error of its `Invoke`.
    """

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.now_ms = 1_000_000
        self.requests: list[tuple[str, RemotingCommand]] = []
        # How long each request may wait for its answer.
        self.waits_ms: list[int] = []
        self.oneways: list[tuple[str, RemotingCommand]] = []
        self.slept_ms: list[int] = []

    def __call__(self, operation: Operation[T]) -> T:
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = operation.send(value) if error is None else operation.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            value, error = None, None
            try:
                value = self.carry_out(effect)
            except Exception as raised:
                error = raised

    def carry_out(self, effect: Any) -> Any:
        if isinstance(effect, Invoke):
            request = effect.request
            if not isinstance(request, RemotingCommand):
                request = request.command()
            self.requests.append((effect.address, request))
            self.waits_ms.append(effect.timeout_ms)
            return self.handler(effect.address, request)
        if isinstance(effect, Oneway):
            self.oneways.append((effect.address, effect.request))
            return None
        if isinstance(effect, Sleep):
            self.slept_ms.append(effect.duration_ms)
            self.now_ms += effect.duration_ms
            return None
        if isinstance(effect, Now | Timestamp):
            return self.now_ms
        if isinstance(effect, Spawn):
            task = PlayedTask(effect.name)
            try:
                task.result = self(effect.operation)
            except Exception as raised:
                task.error = raised
            return task
        if isinstance(effect, Join):
            assert isinstance(effect.task, PlayedTask)
            if effect.task.error is not None:
                raise effect.task.error
            return effect.task.result
        if isinstance(effect, Wait):
            return effect.event.is_set
        if isinstance(effect, Call):
            return effect.function(*effect.args)
        if isinstance(effect, CallEach):
            CallRun(effect).run()
            return None
        assert isinstance(effect, Cancel)
        return None
