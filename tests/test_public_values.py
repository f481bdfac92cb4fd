"""What users get and give goes from process to process and into sets: pickled, copied, hashed."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest

import sparrowmq
from sparrowmq import (
    ConsumeContext,
    ConsumeOrderlyContext,
    HalfMessage,
    Message,
    MessageExt,
    MessageQueue,
    MessageSelector,
    PullResult,
    PullStatus,
    SendResult,
    SendStatus,
)
from sparrowmq.client.directory import QueueLag
from sparrowmq.client.route_cache import TopicRoute
from sparrowmq.client.subscriber import ConsumeCounters
from sparrowmq.errors import SparrowError
from sparrowmq.protocol.bodies import ClientConnection, ConsumerConnection
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.foreign import Foreign
from sparrowmq.strategies import registry
from sparrowmq.strategies.by_config import AllocateMessageQueueByConfig
from sparrowmq.strategies.machine_room import AllocateMessageQueueByMachineRoom
from sparrowmq.strategies.strategy import FunctionStrategy

QUEUE = MessageQueue("T", "a", 1)
EXT = MessageExt(
    topic="T",
    body=b"x",
    properties={"TAGS": "A"},
    broker_name="a",
    queue_id=1,
    queue_offset=5,
    commit_log_position=7,
)
FROZEN = [
    Message("T", b"x"),
    Message("T", b"x", tags="A", keys=("k",), properties={"a": "b"}, sharding_key="s"),
    EXT,
    QUEUE,
    MessageSelector.by_sql("a > 1"),
    SendResult(SendStatus.SEND_OK, "m", "o", QUEUE, 5),
    HalfMessage("m", "o", QUEUE, 5),
    PullResult(PullStatus.FOUND, [EXT], 6, 0, 9),
    QueueLag(QUEUE, 9, None, 9),
    TopicRoute(
        topic="T",
        publish_queues=(QUEUE,),
        subscribe_queues=(QUEUE,),
        brokers={"a": {0: "a:1"}},
        is_template=False,
        fetched_ms=5,
    ),
]
MUTABLE = [
    ConsumeContext(QUEUE, ack_index=1),
    ConsumeOrderlyContext(QUEUE),
    ConsumeCounters(delivered=5),
    ConsumerConnection(connection_set=[ClientConnection(client_id="c")]),
]
WAYS: list[Callable[[Any], Any]] = [
    lambda value: pickle.loads(pickle.dumps(value)),
    copy.copy,
    copy.deepcopy,
]


def take_all(consumer_group: str, current_cid: str, mq_all: Any, cid_all: Any) -> Any:
    return mq_all


@pytest.mark.parametrize("value", [*FROZEN, *MUTABLE], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("way", WAYS, ids=["pickle", "copy", "deepcopy"])
def test_value_survives(value: Any, way: Callable[[Any], Any]) -> None:
    assert value == way(value)
    assert type(value) is type(way(value))


@pytest.mark.parametrize("value", FROZEN, ids=lambda value: type(value).__name__)
def test_equal_frozen_values_have_equal_hashes(value: Any) -> None:
    assert hash(value) == hash(copy.deepcopy(value))
    assert {copy.deepcopy(value)} == {value}


def test_message_is_its_own_whatever_becomes_of_the_mapping_it_was_made_of() -> None:
    properties = {"a": "b"}
    message = Message("T", b"x", properties=properties)
    properties["a"] = "c"

    assert message.properties == {"a": "b"}


def test_message_takes_what_is_as_good_as_bytes_and_tuples() -> None:
    expected = Message("T", b"x", keys=("a", "b"))

    assert expected == Message("T", bytearray(b"x"), keys=["a", "b"])  # type: ignore[arg-type]
    assert expected == Message("T", memoryview(b"x"), keys=("a", "b"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "strategy",
    [
        *(registry.strategy_from(name) for name in get_args(registry.StrategyName)),
        AllocateMessageQueueByConfig([QUEUE]),
        AllocateMessageQueueByMachineRoom({"room"}),
        FunctionStrategy(take_all),
    ],
    ids=lambda strategy: strategy.name,
)
@pytest.mark.parametrize("way", WAYS, ids=["pickle", "copy", "deepcopy"])
def test_strategy_survives(strategy: Any, way: Callable[[Any], Any]) -> None:
    again = way(strategy)

    queues, cids = [MessageQueue("T", "room-a", n) for n in range(2)], ["room-c", "room-d"]
    allocate = [s.allocate("G", "room-c", queues, cids) for s in (strategy, again)]
    assert strategy.name == again.name
    assert allocate[0] == allocate[1]


def error_classes() -> Iterator[type[SparrowError]]:
    for found in pkgutil.walk_packages(sparrowmq.__path__, "sparrowmq."):
        # Those of Spark need Spark; the command line's end the interpreter.
        if not found.name.startswith(("sparrowmq.spark", "sparrowmq.pipeline", "sparrowmq.cli")):
            importlib.import_module(found.name)
    waiting = [SparrowError]
    while waiting:
        yield (kind := waiting.pop())
        waiting += kind.__subclasses__()


def make(kind: type[SparrowError]) -> SparrowError:
    """Make an error with a value for each argument of its constructor."""
    samples: dict[str, Any] = {
        "str": "said",
        "int": 7,
        "bool": True,
        "tuple[str, ...]": ("a", "b"),
        # Where in a file of accounts.
        "Path": ("accounts", 1),
        "RemotingCommand": RemotingCommand(code=7),
        "Foreign": Foreign.TLS,
    }
    arguments: list[Any] = []
    named: dict[str, Any] = {}
    try:
        parameters = inspect.signature(kind).parameters.values()
    except ValueError:
        # It has the constructor of all exceptions.
        return kind("said")
    for parameter in parameters:
        value = samples[str(parameter.annotation).removesuffix(" | None")]
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        else:
            arguments.append(value)
    return kind(*arguments, **named)


@pytest.mark.parametrize("way", WAYS, ids=["pickle", "copy", "deepcopy"])
def test_every_error_survives_with_all_that_it_says(way: Callable[[Any], Any]) -> None:
    kinds = list(error_classes())
    errors = [make(kind) for kind in kinds]
    again = [way(error) for error in errors]

    assert len(kinds) > 20
    assert [(type(e), str(e), e.args, vars(e)) for e in errors] == [
        (type(e), str(e), e.args, vars(e)) for e in again
    ]
