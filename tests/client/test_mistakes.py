"""Mistakes of newcomers: each is said at once, and with what to write instead.

Without the checks each of them is taken for something else: another behaviour, a message that
nobody gets, a dead letter.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import logging
import pickle
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import FrameType
from typing import Any, TypeAlias

import pytest

from hostile import HostileCluster
from sparrowmq import (
    Admin,
    AsyncAdmin,
    AsyncPollConsumer,
    AsyncProducer,
    AsyncPushConsumer,
    AsyncSimpleConsumer,
    AsyncTransactionProducer,
    ConsumeContext,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    MessageSelector,
    PollConsumer,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from sparrowmq.calling import clock
from sparrowmq.client.operations.snapshot import unknown_group
from sparrowmq.client.publisher import Ended
from sparrowmq.errors import ConfigError, ConnectFailed, SparrowError, UsageError
from sparrowmq.model.names import TOOLS_GROUP
from sparrowmq.testing import InProcessCluster
from waiting import wait_until

NOWHERE = "127.0.0.1:1"
QUEUE = MessageQueue("T", "broker-a", 0)
MESSAGE_EXT = MessageExt(
    topic="T",
    body=b"x",
    properties={},
    broker_name="broker-a",
    queue_id=0,
    queue_offset=0,
    commit_log_position=0,
)


def listener(messages: list[MessageExt], context: ConsumeContext) -> None: ...


async def coroutine_listener(messages: list[MessageExt], context: ConsumeContext) -> None: ...


class Handler:
    """Many libraries call an object's method of some name."""

    def consume_message(self, messages: list[MessageExt]) -> None: ...


class CoroutineHandler:
    async def __call__(self, messages: list[MessageExt], context: ConsumeContext) -> None: ...


def generator_listener(messages: list[MessageExt], context: ConsumeContext) -> Iterator[None]:
    yield


# --- settings ---------------------------------------------------------------------------------

SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"listener": None}, "listener is None; it must be a function of (messages, context)"),
    ({"listener": "on_message"}, "must be a function of (messages, context)"),
    ({"listener": Handler()}, "must be a function of (messages, context)"),
    ({"listener": lambda message: None}, "cannot be called as (messages, context)"),
    ({"listener": generator_listener}, "a function with `yield`"),
    ({"listener": coroutine_listener}, "use the client whose name begins with Async"),
    ({"listener": CoroutineHandler()}, "use the client whose name begins with Async"),
    ({"listener": functools.partial(coroutine_listener)}, "with Async"),
    ({"on_assign": coroutine_listener}, "on_assign is the coroutine function"),
    ({"on_revoke": lambda: None}, "on_revoke is"),
    ({"on_lost": "x"}, "on_lost is 'x'; it must be a function of (queues)"),
    ({"strategy": "AVERAGE"}, "did you mean AVG?"),
    ({"strategy": None}, "strategy is None"),
    ({"message_model": "BROADCASTING"}, "such as MessageModel.BROADCASTING"),
    (
        {"start": "earliest"},
        'start is \'earliest\'; it must be "first", "last", a datetime, or a ConsumeFromWhere',
    ),
    ({"orderly": "no"}, "orderly is 'no'; it must be True or False"),
    ({"trace": "no"}, "trace is 'no'; it must be True or False"),
    ({"client_id_rule": "V4_9"}, "client_id_rule is 'V4_9'"),
    ({"unreadable_policy": "SKIP"}, "unreadable_policy is 'SKIP'"),
    ({"instance_name": 7}, "instance_name is 7; it must be a text"),
    ({"client_ip": 7}, "client_ip is 7; it must be a text"),
    ({"namespace": 7}, "namespace 7"),
    ({"group": None}, "the group is None; it must be a text"),
    ({"group": 7, "namespace": "ns"}, "the group is 7; it must be a text"),
    ({"name_server": None}, "name_server is not given, and the environment has no NAMESRV_ADDR"),
    ({"name_server": 9876}, "name_server is 9876; give host:port"),
    ({"name_server": ("127.0.0.1", 9876)}, "give host:port, such as 127.0.0.1:9876"),
    ({"name_server": b"127.0.0.1:9876"}, "give host:port, such as 127.0.0.1:9876"),
    ({"tls": True}, "tls is True"),
    ({"tls": []}, "tls is []"),
    ({"tls": "hush"}, "tls is a text; give"),
    ({"name_server": "rocketmq://me:hush@host:1"}, "name_server 'rocketmq://***@host:1' is not"),
    ({"topics": []}, "topics is []; give a topic, a list of topics, or a dict"),
    ({"topics": 7}, "topics is 7; give a topic, a list of topics, or a dict"),
    ({"topics": [7]}, "the topic is 7"),
    ({"topics": [["T"]]}, "the topic is ['T']"),
    ({"instance_name": "\udcff"}, "instance_name has a character that UTF-8 cannot encode"),
    ({"access_key": "a", "secret_key": "\udcff"}, "secret_key has a character that UTF-8"),
    ({"topics": b"T"}, "topics is b'T'; give a topic, a list of topics, or a dict"),
    ({"topics": "a b"}, "'a b'"),
    ({"start": datetime.min}, "start is datetime.datetime(1, 1, 1, 0, 0), which cannot be told"),
    (
        {"message_model": MessageModel.BROADCASTING, "local_offset_dir": 7},
        "local_offset_dir is 7; it must be the path of a directory",
    ),
]


def said(error: BaseException, words: str) -> bool:
    return words in str(error)


@pytest.mark.parametrize(("settings", "words"), SETTINGS, ids=[words for _, words in SETTINGS])
def test_wrong_setting_of_a_consumer_is_refused_where_it_is_made(
    settings: dict[str, Any], words: str
) -> None:
    given: dict[str, Any] = {"group": "GID_c", "name_server": NOWHERE, "listener": listener}
    given |= settings

    with pytest.raises(ConfigError) as caught:
        PushConsumer(given.pop("group"), **given)

    assert said(caught.value, words)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"auto_commit": "no"}, "auto_commit is 'no'; it must be True or False"),
        ({"on_assign": coroutine_listener}, "on_assign is the coroutine function"),
        ({"message_model": "BROADCASTING"}, "such as MessageModel.BROADCASTING"),
    ],
)
def test_wrong_setting_of_a_poll_consumer_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PollConsumer("GID_c", name_server=NOWHERE, **settings)

    assert said(caught.value, words)


def test_type_checker_sees_what_is_no_strategy_and_no_plain_listener() -> None:
    """The comments are errors themselves where a type checker finds nothing wrong."""
    with pytest.raises(ConfigError):
        PushConsumer("G", name_server=NOWHERE, listener=listener, strategy="AVERAGE")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        PushConsumer("G", name_server=NOWHERE, listener=coroutine_listener)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        Message("T", b"x", keys="order-1")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        Message("T", "text")  # type: ignore[arg-type]
    with Producer("G", name_server=NOWHERE) as producer, pytest.raises(UsageError):
        producer.send(Message("T", b"x"), QUEUE)  # type: ignore[call-arg]


async def test_consumer_of_the_asyncio_face_takes_coroutine_functions_of_any_kind() -> None:
    for function in (
        coroutine_listener,
        CoroutineHandler(),
        functools.partial(coroutine_listener),
        listener,
    ):
        consumer = AsyncPushConsumer("GID_c", name_server=NOWHERE, listener=function)
        await consumer.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["listener", "on_assign"])
def test_plain_function_that_returns_a_coroutine_is_named_in_the_log(
    hostile: HostileCluster, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    hostile.broker.add_messages("T", b"1")
    functions: dict[str, Any] = {
        "listener": listener,
        name: lambda *_: coroutine_listener([], ConsumeContext(QUEUE)),
    }
    with PushConsumer(
        "GID_c",
        name_server=hostile.address,
        start="first",
        **functions,
    ) as consumer:
        consumer.subscribe("T")
        consumer.start()
        wait_until("the line", lambda: "which is never awaited" in caplog.text)

    # The error is SparrowMQ's own, and no code of the user's is in its traceback.
    assert [each for each in caplog.records if each.exc_info] == []


def test_traceback_of_a_listener_begins_in_the_users_code(
    hostile: HostileCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(messages: list[MessageExt], context: ConsumeContext) -> None:
        raise ValueError("no such flight")

    hostile.broker.add_messages("T", b"1")
    with PushConsumer("GID_c", "T", name_server=hostile.address, start="first", listener=fail):
        wait_until("the line", lambda: "the listener failed" in caplog.text)

    (record,) = [each for each in caplog.records if "the listener failed" in each.getMessage()]
    assert record.exc_info is not None
    assert [frame.name for frame in traceback.extract_tb(record.exc_info[2])] == ["fail"]


# --- subscriptions ----------------------------------------------------------------------------


@pytest.fixture
def consumer() -> Iterator[PushConsumer]:
    with PushConsumer("GID_c", name_server=NOWHERE, listener=listener) as made:
        yield made


@pytest.mark.parametrize(
    "expression",
    [
        "n > 14 AND TAGS = 'B'",
        "n=1",
        "region IS NOT NULL",
        "TagA | TagB",
        "TagA, TagB",
        "TagA,TagB",
        "TagA TagB",
        "TagA OR TagB",
        "TagA && TagB",
        "(TagA)",
        "!TagA",
        "Tag*",
        "TagA || *",
        " * ",
    ],
)
def test_expression_that_is_surely_no_list_of_tags_is_refused(
    consumer: PushConsumer, expression: str
) -> None:
    with pytest.raises(UsageError, match=r"MessageSelector\.by_sql") as caught:
        consumer.subscribe("T", expression)

    assert repr(expression) in str(caught.value)
    consumer.subscribe("T", MessageSelector.by_tag(expression))


@pytest.mark.parametrize(
    "expression",
    ["*", "", "TagA", "TagA||TagB", " TagA || Tag-B_2 ", "航班", "a.b:c/d#e@f+g%h", "||x"],
)
def test_tags_of_all_usual_kinds_are_taken(consumer: PushConsumer, expression: str) -> None:
    consumer.subscribe("T", expression)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("T", None), "the expression of topic T is None"),
        (("T", ["TagA", "TagB"]), "is ['TagA', 'TagB']; give '*', tags such as 'TagA || TagB'"),
        (("T", listener), "give '*', tags"),
        ((["T", "U"],), "the topic is ['T', 'U']; it must be a text"),
        ((None,), "the topic is None"),
    ],
)
def test_subscription_of_another_type_is_refused(
    consumer: PushConsumer, arguments: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(SparrowError) as caught:
        consumer.subscribe(*arguments)

    assert said(caught.value, words)


def test_selector_takes_texts() -> None:
    for make in (MessageSelector.by_sql, MessageSelector.by_tag):
        with pytest.raises(UsageError, match="give a text"):
            make(None)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="UTF-8 cannot encode"):
            make("\udcff")


# --- what is forgotten ------------------------------------------------------------------------


def test_start_without_a_subscription_is_a_warning(
    hostile: HostileCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with PushConsumer("GID_c", name_server=hostile.address, listener=listener) as made:
        made.start()

        assert "starts without a subscription" in caplog.text
        assert {entry.levelno for entry in caplog.records} == {logging.WARNING}


def test_end_without_a_start_is_a_warning(
    consumer: PushConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    consumer.subscribe("T")
    consumer.close()
    consumer.close()

    assert ["subscribed T but was never started" in line for line in caplog.messages] == [True]


def test_consumer_that_is_dropped_without_a_start_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forgotten = PollConsumer("GID_c", name_server=NOWHERE)
    forgotten.subscribe("T")
    member = forgotten._member
    del forgotten
    member.driver.close()
    del member
    gc.collect()

    assert ["subscribed T but was never started" in line for line in caplog.messages] == [True]


def test_consumer_that_was_made_and_not_used_is_not_worth_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    PushConsumer("GID_c", name_server=NOWHERE, listener=listener).close()

    assert caplog.messages == []


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_consumer_that_gets_no_thread_may_be_started_again(
    consumer: PushConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer.subscribe("T")
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            consumer.start()
    consumer.start()

    assert "running" in repr(consumer)


def test_check_that_is_a_coroutine_function_is_refused_as_a_producers() -> None:
    async def check(message: MessageExt) -> TransactionState:
        raise AssertionError

    settings: dict[str, Any] = {"check": check}
    with pytest.raises(ConfigError, match="check is the coroutine function") as caught:
        TransactionProducer("GID_p", name_server="127.0.0.1:1", **settings)

    assert "consumer" not in str(caught.value)


def test_transactional_producer_that_gets_no_thread_may_be_started_again(
    hostile: HostileCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = TransactionProducer("GID_p", name_server=hostile.address, check=decide)
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            producer.start()

    with producer:
        assert producer._host.is_started


def test_message_that_gets_no_thread_has_an_end_for_its_observers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[BaseException | None] = []

    class Watching:
        def begin(
            self, messages: Sequence[Message], *, is_half: bool
        ) -> tuple[Sequence[Message], Ended]:
            return messages, lambda _, error: ended.append(error)

    with Producer("GID_p", name_server=NOWHERE) as producer:
        producer._publisher.observers = (Watching(),)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread") as caught:
            producer.send_nowait(Message("T", b"x"))

    assert ended == [caught.value]


def test_poll_without_a_subscription_is_an_error(hostile: HostileCluster) -> None:
    """It would wait for ever."""
    with PollConsumer("GID_c", name_server=hostile.address) as made:
        made.start()

        with pytest.raises(UsageError, match="call subscribe or assign first"):
            made.getone()
        made.assign([])
        assert made.getone(timeout_ms=0) is None


# --- messages and queues ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: p.send("text"), "'text' is not a Message: give Message(topic, body)"),
        (lambda p: p.send("T", b"x"), "'T' is not a Message: give Message(topic, body)"),
        (lambda p: p.send_nowait("T", b"x"), "'T' is not a Message: give Message(topic, body)"),
        (lambda p: p.send_oneway("T", b"x"), "'T' is not a Message: give Message(topic, body)"),
        (lambda p: p.request("T", b"x"), "'T' is not a Message: give Message(topic, body)"),
        (lambda p: p.send(Message("T", b"x"), QUEUE), "got 2 values; give by name: queue=..."),
        (
            lambda p: p.send(Message("T", b"x"), timeout=3),
            "did you mean send_timeout_ms? Producer(",
        ),
        (lambda p: p.send(Message("T", b"x"), key="k"), "did you mean keys? A Message takes it"),
        (lambda p: p.send(Message("T", b"x"), callback=print), "; there are message, queue"),
        (lambda p: p.send_nowait(Message("T", b"x"), partition=1), "did you mean queue?"),
        (lambda p: p.request(Message("T", b"x"), timeout=3), "did you mean timeout_ms?"),
        (lambda p: p.flush(timeout=3), "Producer.flush has no argument 'timeout'"),
        (lambda p: p.send(), "Producer.send: missing a required argument: 'message'"),
        (lambda p: p.send(b"bytes"), "is not a Message"),
        (lambda p: p.send(MESSAGE_EXT), "make a new Message from its topic, body and tags"),
        (lambda p: p.send([Message("T", b"x")]), "use send_batch for several messages"),
        (lambda p: p.send_oneway("text"), "is not a Message"),
        (lambda p: p.select_queue("text"), "is not a Message"),
        (lambda p: p.send_batch(Message("T", b"x")), "is not a list of messages"),
        (lambda p: p.send_batch(Message("T", b"x") for _ in range(3)), "is not a list of messages"),
        (lambda p: p.send_batch(["text"]), "'text' is not a Message"),
        (lambda p: p.send(Message("T", b"x"), queue=3), "3 is not a queue; give a MessageQueue"),
        (lambda p: p.send(Message("T", b"x"), queue=("T", "broker-a", 0)), "is not a queue"),
        (
            lambda p: p.send(Message("T", b"x"), queue=MessageQueue("T", "broker-a", "0")),  # type: ignore[arg-type]
            "queue_id of a queue of 'T' is '0'; it must be a whole number from 0 on",
        ),
        (
            lambda p: p.send(Message("T", b"x"), queue=MessageQueue("T", "broker-a", -1)),
            "queue_id of a queue of 'T' is -1; it must be a whole number from 0 on",
        ),
        (
            lambda p: p.send(Message("T", b"x"), queue=MessageQueue("T", None, 0)),  # type: ignore[arg-type]
            "broker_name of a queue is None; it must be a text",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused(call: Callable[[Any], object], words: str) -> None:
    with (
        Producer("GID_p", name_server=NOWHERE) as producer,
        pytest.raises(UsageError) as caught,
    ):
        call(producer)

    assert said(caught.value, words)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.assign(QUEUE), "is not a list of queues; give a list"),
        (lambda c: c.assign(["T"]), "'T' is not a queue; give a MessageQueue"),
        (lambda c: c.pause([QUEUE]), "is not a queue; give a MessageQueue"),
        (lambda c: c.resume(0), "0 is not a queue"),
        (lambda c: c.seek(0, 0), "0 is not a queue"),
        (lambda c: c.seek(QUEUE, "0"), "offset is '0'"),
        (lambda c: c.seek_to_begin([QUEUE]), "is not a queue"),
        (lambda c: c.commit([QUEUE]), "is not a mapping of queues to offsets"),
        (lambda c: c.commit({QUEUE: "5"}), "offset is '5'"),
        (lambda c: c.commit({QUEUE: -1}), "offset is -1"),
        (lambda c: c.committed_offset("T"), "'T' is not a queue"),
        (lambda c: c.pull("T", 0), "'T' is not a queue"),
        (lambda c: c.pull(QUEUE, -1), "offset is -1"),
        (lambda c: c.pull(QUEUE, 0, 0), "count_max is 0; it must be a whole number from 1 on"),
        (lambda c: c.getmany(max_records=10), "did you mean count_max?"),
        (lambda c: c.search_offset(QUEUE, datetime.now(UTC)), "give milliseconds since 1970"),
        (lambda c: c.getmany(float("nan")), "count_max is nan; it must be a whole number"),
        (lambda c: c.wait_assigned(float("nan")), "timeout_ms is nan; give whole milliseconds"),
        (lambda c: c.pull(QUEUE, 0, suspend_ms=0.5), "suspend_ms is 0.5; give whole milliseconds"),
        (lambda c: c.unsubscribe(None), "the topic is None; it must be a text"),
        (lambda c: c.fetch_subscribe_queues(object), "the topic is <class 'object'>; it must be"),
    ],
)
def test_what_is_no_queue_or_offset_is_refused(call: Callable[[Any], object], words: str) -> None:
    with PollConsumer("GID_c", name_server=NOWHERE) as made:
        made.start()
        with pytest.raises(SparrowError) as caught:
            call(made)

    assert said(caught.value, words)


def test_wait_for_a_time_that_is_not_whole_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """With a `Decimal` the consumer's loop failed, and with it each call under way."""
    with (
        InProcessCluster() as cluster,
        PushConsumer("G", name_server=cluster.name_server, listener=listener) as consumer,
    ):
        cluster.create_topic("T")
        consumer.subscribe("T")
        consumer.start()
        wrong: list[Any] = [Decimal(1), float("nan"), 0.5]
        for timeout_ms in wrong:
            for wait in (consumer.wait_assigned, consumer.wait_idle):
                with pytest.raises(UsageError, match=r"timeout_ms is .*; give whole milliseconds"):
                    wait(timeout_ms)
        assert consumer.wait_idle()

    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda a: a.create_topic("T", 0), "queues is 0; it must be a whole number from 1 to"),
        (lambda a: a.create_topic("T", "8"), "queues is '8'"),
        (lambda a: a.dead_letters("G", True), "count_max is True; it must be a whole number"),
        (lambda a: a.create_topic(["T"]), "create_topic: topic is ['T']; it must be a text"),
        (lambda a: a.update_committed_offset("G", QUEUE, -1), "offset is -1"),
        (lambda a: a.create_topic("T", partitions=8), "did you mean queues?"),
        (lambda a: a.create_topic("%RETRY%G"), "'%RETRY%G' is reserved"),
        (lambda a: a.max_offset("T"), "queue is 'T'; it must be a MessageQueue, such as "),
        (lambda a: a.committed_offset(5, QUEUE), "group is 5; it must be a text"),
        (lambda a: a.group_lag(group=b"G", topic="T"), "group is b'G'; it must be a text"),
        (lambda a: a.dead_letters("G", "9"), "count_max is '9'; it must be a whole number"),
        (lambda a: a.resend_dead_letters("G", "x"), "it must be a list of received messages"),
        (lambda a: a.put_account("key12345", topic_perms="T=PUB"), "must be a list of texts"),
        (lambda a: a.put_account("key12345", topic_perms=["T=PUB", 7]), "must be a list of texts"),
        (lambda a: a.update_broker_config("b", {"a": 1}), "must be a dict of texts and texts"),
        (
            lambda a: a.set_broker_writable("b", is_writable=1),
            "is_writable is 1; it must be True or False",
        ),
        (lambda a: a.delete_group("\udcff"), "delete_group: group has a character that UTF-8"),
        (lambda a: a.group_snapshot("\udcff"), "group has a character that UTF-8 cannot encode"),
        (lambda a: a.min_offset(MessageQueue("T", "\udcff", 0)), "queue has a character that"),
        (lambda a: a.update_broker_config("b", {"a": "\udcff"}), "settings has a character that"),
        (lambda a: a.put_account("a", topic_perms=["\udcff"]), "topic_perms has a character that"),
    ],
)
def test_what_an_administrator_cannot_ask_for_is_refused(
    call: Callable[[Any], object], words: str
) -> None:
    with Admin(name_server=NOWHERE) as admin, pytest.raises(SparrowError) as caught:
        call(admin)

    assert said(caught.value, words)


def test_what_may_be_left_out_may_be_none() -> None:
    with Admin(name_server=NOWHERE) as admin, pytest.raises(ConnectFailed):
        admin.create_topic("T", 1, cluster=None)


# --- clients after their end, and on a second event loop ---------------------------------------

Make: TypeAlias = Callable[[str], Any]
CLIENTS: dict[str, tuple[Make, Make]] = {
    "producer": (
        lambda at: Producer("G", name_server=at),
        lambda at: AsyncProducer("G", name_server=at),
    ),
    "transactions": (
        lambda at: TransactionProducer("G", name_server=at, check=decide),
        lambda at: AsyncTransactionProducer("G", name_server=at, check=decide),
    ),
    "push": (
        lambda at: PushConsumer("G", name_server=at, listener=listener),
        lambda at: AsyncPushConsumer("G", name_server=at, listener=listener),
    ),
    "poll": (
        lambda at: PollConsumer("G", name_server=at),
        lambda at: AsyncPollConsumer("G", name_server=at),
    ),
    "simple": (
        lambda at: SimpleConsumer("G", name_server=at),
        lambda at: AsyncSimpleConsumer("G", name_server=at),
    ),
    "admin": (lambda at: Admin(name_server=at), lambda at: AsyncAdmin(name_server=at)),
}


def decide(message: MessageExt) -> TransactionState:
    return TransactionState.COMMIT


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_closed_client_cannot_be_entered(kind: str) -> None:
    plain, awaited = [make(NOWHERE) for make in CLIENTS[kind]]
    plain.close()
    await awaited.close()

    with pytest.raises(UsageError, match=r"(make a|open a) new"), plain:
        raise AssertionError
    with pytest.raises(UsageError, match=r"(make a|open a) new"):
        async with awaited:
            raise AssertionError


@pytest.mark.parametrize(
    "make",
    [
        lambda: PushConsumer("G", "T", name_server=NOWHERE, listener=listener),
        lambda: PollConsumer("G", "T", name_server=NOWHERE),
        lambda: TransactionProducer("G", name_server=NOWHERE, check=decide),
    ],
    ids=["push", "poll", "transactions"],
)
def test_client_that_runs_already_goes_on_when_it_is_entered(make: Callable[[], Any]) -> None:
    with closing(make()) as client:
        client.start()

        with pytest.raises(UsageError, match="was started before"), client:
            raise AssertionError

        assert "closed" not in repr(client)


def test_poll_that_ctrl_c_ends_leaves_the_consumer_to_the_next_one() -> None:
    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is clock.timestamp_ms.__code__:
            sys.setprofile(None)
            raise KeyboardInterrupt

    with closing(PollConsumer("G", "T", name_server=NOWHERE)) as consumer:
        consumer.start()
        before = sys.getprofile()
        sys.setprofile(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                consumer.getone(1)
        finally:
            sys.setprofile(before)

        assert consumer.getone(1) is None


async def test_client_of_asyncio_that_runs_already_goes_on_when_it_is_entered() -> None:
    consumer = AsyncPollConsumer("G", "T", name_server=NOWHERE)
    await consumer.start()

    with pytest.raises(UsageError, match="was started before"):
        await consumer.__aenter__()

    assert "running" in repr(consumer)
    await consumer.close()


async def use(client: Any) -> None:
    """Use a client for the first time."""
    if isinstance(client, AsyncAdmin):
        await client.list_topics()
    elif isinstance(client, AsyncProducer):
        await client.fetch_publish_queues("T")
    elif isinstance(client, AsyncSimpleConsumer):
        client.subscribe("T")
        await client.receive(wait=timedelta())
    elif isinstance(client, AsyncPollConsumer):
        await client.fetch_subscribe_queues("T")
    else:
        await client.health()


@pytest.mark.parametrize("kind", CLIENTS)
def test_client_of_another_event_loop_can_neither_be_closed_nor_entered(kind: str) -> None:
    async def enter(client: Any) -> None:
        async with client:
            raise AssertionError

    async def close(client: Any) -> None:
        await client.close()

    with InProcessCluster() as cluster, asyncio.Runner() as first, asyncio.Runner() as second:
        cluster.create_topic("T")
        client = CLIENTS[kind][1](cluster.name_server)
        first.run(use(client))
        for call in (close, enter):
            with pytest.raises(UsageError, match="use and close a client in one loop"):
                second.run(call(client))
        first.run(close(client))
        second.run(close(client))


@pytest.mark.parametrize("kind", CLIENTS)
def test_client_is_not_copied(kind: str) -> None:
    with CLIENTS[kind][0](NOWHERE) as client:
        for copy_it in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(UsageError, match="make one in each process"):
                copy_it(client)


async def test_client_of_asyncio_in_a_thread_without_a_loop_is_refused() -> None:
    with InProcessCluster() as cluster:
        cluster.create_topic("T")
        async with AsyncProducer("G", name_server=cluster.name_server) as producer:

            def step() -> None:
                producer.send(Message("T", b"x")).send(None)

            def queue() -> Any:
                return producer.send_nowait(Message("T", b"x"))

            for begin in (producer.send, producer.send_nowait):
                await begin(Message("T", b"x"))
                for call in (step, queue):
                    with pytest.raises(UsageError, match="this thread runs none"):
                        await asyncio.to_thread(call)


@pytest.mark.parametrize("is_sent", [False, True])
def test_messages_are_queued_on_one_event_loop_only(is_sent: bool) -> None:
    async def send(producer: AsyncProducer) -> None:
        await producer.send(Message("T", b"x"))

    async def queue(producer: AsyncProducer) -> None:
        await producer.send_nowait(Message("T", b"x"))

    with InProcessCluster() as cluster, asyncio.Runner() as first, asyncio.Runner() as second:
        cluster.create_topic("T")
        producer = AsyncProducer("G", name_server=cluster.name_server)
        first.run(send(producer) if is_sent else queue(producer))
        for _ in range(2):
            with pytest.raises(UsageError, match="use and close a client in one loop"):
                second.run(queue(producer))
        first.run(queue(producer))
        first.run(producer.close())


# Without types: a type checker sees these mistakes.
a_producer: Any = Producer
a_consumer: Any = PushConsumer


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: a_producer("GID_p", NOWHERE),
            "takes group by place, and got 2 values; give by name",
        ),
        (lambda: a_producer(name_server=NOWHERE), "missing a required argument: 'group'"),
        (lambda: a_producer("GID_p", nameserver=NOWHERE), "did you mean name_server?"),
        (lambda: a_consumer("GID_c", "T", listener), "give by name: name_server=..., listener="),
    ],
)
def test_wrong_arguments_of_a_client_are_explained(call: Callable[[], object], words: str) -> None:
    with pytest.raises(SparrowError) as caught:
        call()

    assert said(caught.value, words)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("publish", "Producer has no 'publish'; did you mean send?"),
        ("send_async", "Producer has no 'send_async'; did you mean send_nowait?"),
        ("fetch_queues", "Producer has no 'fetch_queues'; did you mean fetch_publish_queues?"),
        ("qqq", "Producer has no 'qqq'"),
        ("__deepcopy__", "'Producer' object has no attribute '__deepcopy__'"),
    ],
)
def test_name_that_a_client_does_not_have_is_explained(name: str, words: str) -> None:
    with (
        Producer("GID_p", name_server=NOWHERE) as producer,
        pytest.raises(AttributeError) as caught,
    ):
        getattr(producer, name)

    assert str(caught.value) == words


async def test_wrong_arguments_of_a_coroutine_are_explained() -> None:
    async with AsyncProducer("GID_p", name_server=NOWHERE) as producer:
        with pytest.raises(UsageError, match=r"AsyncProducer\.send has no argument 'timeout'"):
            await producer.send(Message("T", b"x"), timeout=3)  # type: ignore[call-arg]


def test_unknown_group_is_answered_by_the_nearest_or_by_some_that_there_are() -> None:
    def hint(group: str, *known: str) -> str:
        return str(unknown_group(group, known)).partition(f"consumer group {group!r}")[2]

    assert hint("GID_bord", "GID_board") == "; did you mean GID_board? There are GID_board"
    assert hint("x", *"abcdefg") == "; there are a, b, c, d, e and 2 more"
    assert hint("x", TOOLS_GROUP) == "; there are none yet"


async def test_argument_of_another_type_is_named_where_the_call_fails() -> None:
    async with AsyncProducer("GID_p", name_server=NOWHERE) as producer:
        with pytest.raises(UsageError) as caught:
            await producer.fetch_publish_queues(["T"])  # type: ignore[arg-type]

    assert said(caught.value, "fetch_publish_queues: topic is ['T']; it must be a text")
    assert caught.value.__suppress_context__


def test_type_error_of_users_code_is_not_ours() -> None:
    def choose(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        raise TypeError("choose() got an unexpected keyword argument 'x'")

    with (
        InProcessCluster() as cluster,
        Producer("GID_p", name_server=cluster.name_server) as producer,
        pytest.raises(TypeError, match="choose"),
    ):
        producer.send(Message("T", b"x"), queue=choose)


def test_error_that_a_caller_gets_is_not_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    def answer() -> None:
        peer, _ = listening.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            peer.recv(4_096)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=answer)
        thread.start()
        with Admin(name_server=address) as admin, pytest.raises(ConnectFailed, match="HTTP"):
            admin.list_topics()
        thread.join()

    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []
