"""Transactional producers of both faces on a real broker, which asks back every 200 ms or so."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from failures import failing_once
from hostile import HostileCluster, NameServerScript, record
from play import Play, PlayedTask, make_publisher
from sparrowmq import (
    AsyncProducer,
    AsyncTransactionProducer,
    HalfMessage,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from sparrowmq.calling.effects import Spawn, Wait
from sparrowmq.client import transaction_outcomes
from sparrowmq.client.faces import blocking_transaction
from sparrowmq.client.operations import transactions
from sparrowmq.client.transaction_outcomes import Coordinator, note_broker_lost
from sparrowmq.errors import ConfigError, ConnectFailed, UsageError
from sparrowmq.membership.member import HEARTBEAT_RETRY_MS
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.testing.embedded import EmbeddedCluster
from waiting import wait_until

COMMIT, ROLLBACK, UNKNOWN = TransactionState
OPTIONS = ("--transaction-timeout-ms", "100", "--transaction-check-interval-ms", "200")


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(options=OPTIONS) as running:
        yield running


class Received:
    """What a consumer of a topic got, by body."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []

    def __call__(self, messages: list[MessageExt], _: Any) -> None:
        self.messages += messages

    @property
    def bodies(self) -> Counter[str]:
        return Counter(message.body.decode() for message in self.messages)


@pytest.fixture
def received(cluster: EmbeddedCluster, topic: str, group: str) -> Iterator[Received]:
    found = Received()
    consumer = PushConsumer(
        f"{group}_c",
        name_server=cluster.name_server,
        listener=found,
        start="first",
    )
    with consumer:
        consumer.subscribe(topic)
        consumer.start()
        yield found


class Ledger:
    """What became of the user's own work, by message id: the check function."""

    def __init__(self) -> None:
        self.outcomes: dict[str, TransactionState] = {}
        self.asked: list[MessageExt] = []
        self.failure: Exception | None = None

    def __call__(self, message: MessageExt) -> TransactionState:
        self.asked.append(message)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return self.outcomes.get(message.msg_id, UNKNOWN)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def make_producer(
    cluster: EmbeddedCluster, group: str, ledger: Ledger
) -> Iterator[Callable[..., TransactionProducer]]:
    made: list[TransactionProducer] = []

    def make(**settings: Any) -> TransactionProducer:
        settings.setdefault("check", ledger)
        producer = TransactionProducer(group, name_server=cluster.name_server, **settings)
        producer.start()
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.close()


def test_consumers_get_what_is_committed_and_nothing_else(
    make_producer: Callable[..., TransactionProducer], topic: str, received: Received
) -> None:
    producer = make_producer()

    halves = {
        name: producer.send_half(Message(topic, name.encode(), tags="A", keys=("k",)))
        for name in ("committed", "rolled back", "also committed")
    }
    assert producer.commit(halves["committed"]) is COMMIT
    assert producer.rollback(halves["rolled back"]) is ROLLBACK
    assert producer.commit(halves["also committed"]) is COMMIT

    wait_until("two messages", lambda: len(received.messages) >= 2)
    assert received.bodies == Counter(("committed", "also committed"))
    for message in received.messages:
        half = halves[message.body.decode()]
        assert (half.msg_id, half.queue, "A", ("k",)) == (
            message.msg_id, message.queue, message.tags, message.keys
        )  # fmt: skip


def test_the_check_function_gives_the_outcome_of_what_was_not_ended(
    make_producer: Callable[..., TransactionProducer],
    topic: str,
    received: Received,
    ledger: Ledger,
) -> None:
    producer = make_producer()
    kept = producer.send_half(Message(topic, b"kept", tags="A"))
    dropped = producer.send_half(Message(topic, b"dropped"))
    wait_until("two questions", lambda: len({m.body for m in ledger.asked}) == 2)
    unknown = dict(received.bodies)

    ledger.outcomes = {kept.msg_id: COMMIT, dropped.msg_id: ROLLBACK}

    wait_until("the message", lambda: len(received.messages) >= 1)
    assert unknown == {}
    assert {message.body for message in received.messages + ledger.asked} == {b"kept", b"dropped"}
    assert set(received.bodies) == {"kept"}
    first = next(message for message in ledger.asked if message.body == b"kept")
    assert (kept.msg_id, topic, kept.queue.queue_id, "A") == (
        first.msg_id, first.topic, first.queue_id, first.tags
    )  # fmt: skip


def test_another_producer_of_the_group_answers_for_one_that_is_gone(
    make_producer: Callable[..., TransactionProducer],
    topic: str,
    received: Received,
    ledger: Ledger,
) -> None:
    first = make_producer()
    half = first.send_half(Message(topic, b"left behind"))
    first.close()
    ledger.outcomes = {half.msg_id: COMMIT}

    make_producer()

    wait_until("the message", lambda: len(received.messages) >= 1)
    assert set(received.bodies) == {"left behind"}


def test_a_check_that_fails_is_told_and_asked_again(
    make_producer: Callable[..., TransactionProducer],
    topic: str,
    received: Received,
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    producer = make_producer()
    ledger.failure = RuntimeError("no database")
    with caplog.at_level(logging.WARNING, "sparrowmq.client"):
        half = producer.send_half(Message(topic, b"kept"))
        ledger.outcomes = {half.msg_id: COMMIT}
        wait_until("the message", lambda: len(received.messages) >= 1)

    (line,) = [text for text in caplog.messages if "no database" in text]
    assert f"no outcome for half message {half.msg_id} of {topic}" in line


def test_a_check_that_returns_no_outcome_is_told(
    make_producer: Callable[..., TransactionProducer],
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    called = threading.Event()

    def check(message: MessageExt) -> Any:
        called.set()

    producer = make_producer(check=check)
    with caplog.at_level(logging.WARNING, "sparrowmq.client"):
        producer.send_half(Message(topic, b"x"))
        wait_until("a line", lambda: "must return a TransactionState" in caplog.text)

    assert called.is_set()


def test_an_end_that_no_broker_confirms_is_unknown(
    make_producer: Callable[..., TransactionProducer],
    topic: str,
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    producer = make_producer()
    half = producer.send_half(Message(topic, b"x"))
    ledger.outcomes = {half.msg_id: ROLLBACK}
    foreign = half._replace(half_offset=half.half_offset + 1_000)

    with caplog.at_level(logging.WARNING, "sparrowmq.client"):
        assert producer.commit(foreign) is UNKNOWN

    assert f"the COMMIT of half message {half.msg_id} is not confirmed" in caplog.text


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_the_first_outcome_stays(
    make_producer: Callable[..., TransactionProducer],
    topic: str,
    received: Received,
    is_confirmed: bool,
) -> None:
    producer = make_producer()
    committed = producer.send_half(Message(topic, b"committed"))
    dropped = producer.send_half(Message(topic, b"dropped"))
    if not is_confirmed:
        dropped = dropped._replace(half_offset=dropped.half_offset + 1_000)
    first = producer.commit(committed), producer.rollback(dropped)

    with pytest.raises(UsageError, match=r"was committed before.* cannot be rolled back now"):
        producer.rollback(committed)
    with pytest.raises(UsageError, match=r"was rolled back before.* cannot be committed now"):
        producer.commit(dropped)
    # The same again.
    assert (producer.commit(committed), producer.rollback(dropped)) == first
    assert first == (COMMIT, ROLLBACK if is_confirmed else UNKNOWN)
    wait_until("the message", lambda: received.messages)
    assert received.bodies == {"committed": 1}


def test_only_the_latest_outcomes_are_remembered(
    make_producer: Callable[..., TransactionProducer],
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_outcomes, "OUTCOMES_MAX", 1)
    producer = make_producer()
    first, second = (producer.send_half(Message(topic, b"x")) for _ in range(2))
    producer.rollback(first)
    producer.rollback(second)

    assert producer.commit(first) is COMMIT
    with pytest.raises(UsageError, match="was committed before"):
        producer.rollback(first)


def test_a_check_may_close_its_producer_and_its_answer_counts(
    make_producer: Callable[..., TransactionProducer], topic: str, received: Received
) -> None:
    asked: list[MessageExt] = []
    closed, may_return = threading.Event(), threading.Event()
    ended: list[str] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message)
        producer.close()
        closed.set()
        may_return.wait(20)
        ended.append("the check")
        return COMMIT

    producer = make_producer(check=check)
    producer.send_half(Message(topic, b"x"))

    assert closed.wait(20)
    returning = threading.Timer(0.05, may_return.set)
    returning.start()
    producer.close()
    ended.append("close")
    wait_until("the message", lambda: received.messages)
    returning.join()
    assert ended == ["the check", "close"]
    assert (len(asked), repr(producer)[-7:]) == (1, "closed>")


def test_a_block_commits_at_its_end_and_rolls_back_after_an_error(
    make_producer: Callable[..., TransactionProducer], topic: str, received: Received
) -> None:
    producer = make_producer()
    with producer.transaction(Message(topic, b"committed")) as half:
        pass
    with pytest.raises(LookupError), producer.transaction(Message(topic, b"failed")):
        raise LookupError("no stock")
    # Its commit is the last: by then all outcomes are known.
    producer.send(Message(topic, b"plain"))

    wait_until("two messages", lambda: len(received.messages) >= 2)
    assert set(received.bodies) == {"committed", "plain"}
    assert half.msg_id in {message.msg_id for message in received.messages}


def test_a_transaction_ended_inside_its_block_is_not_ended_again(
    make_producer: Callable[..., TransactionProducer], topic: str, received: Received
) -> None:
    producer = make_producer()
    with producer.transaction(Message(topic, b"dropped")) as half:
        assert producer.rollback(half) is ROLLBACK
    with suppress(LookupError), producer.transaction(Message(topic, b"kept")) as half:
        assert producer.commit(half) is COMMIT
        raise LookupError("after the commit")
    producer.send(Message(topic, b"plain"))

    wait_until("two messages", lambda: len(received.messages) >= 2)
    assert set(received.bodies) == {"kept", "plain"}


def test_a_block_that_is_interrupted_leaves_the_outcome_to_the_check(
    make_producer: Callable[..., TransactionProducer],
    topic: str,
    received: Received,
    ledger: Ledger,
) -> None:
    producer = make_producer()
    with (
        suppress(KeyboardInterrupt),
        producer.transaction(Message(topic, b"interrupted")) as half,
    ):
        ledger.outcomes[half.msg_id] = COMMIT
        raise KeyboardInterrupt

    wait_until("the message", lambda: received.messages)
    assert set(received.bodies) == {"interrupted"}
    assert half.msg_id in {message.msg_id for message in ledger.asked}


def test_a_delayed_message_is_refused(
    make_producer: Callable[..., TransactionProducer], topic: str
) -> None:
    with pytest.raises(UsageError, match="cannot be delayed"):
        make_producer().send_half(Message(topic, b"x", delay_level=1))


def test_a_producer_works_from_start_to_close(
    cluster: EmbeddedCluster, group: str, topic: str, ledger: Ledger
) -> None:
    producer = TransactionProducer(group, name_server=cluster.name_server, check=ledger)
    with pytest.raises(UsageError, match="not started"):
        producer.send_half(Message(topic, b"x"))
    producer.start()
    with pytest.raises(UsageError, match="was started before"):
        producer.start()
    producer.close()
    producer.close()
    with pytest.raises(UsageError, match="is closed"):
        producer.send_half(Message(topic, b"x"))


@pytest.mark.slow
def test_a_producer_that_idles_stays_registered_and_is_asked(hostile: HostileCluster) -> None:
    """Brokers ask only producers whose heartbeats come; nobody calls this one."""
    asked: list[MessageExt] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message)
        return COMMIT

    def beats() -> int:
        return hostile.broker.count(RequestCode.HEART_BEAT)

    with TransactionProducer("GID_p", name_server=hostile.address, check=check, heartbeat_ms=1_000):
        wait_until("the first heartbeat", beats)
        elapsed_s = wait_until("three more", lambda: beats() >= 4)
        half = record("T", 0, 5, b"half", properties="PGROUP\x01GID_p\x02UNIQ_KEY\x01ID\x02")
        fields = {"tranStateTableOffset": "5", "commitLogOffset": "5000", "msgId": "ID"}
        hostile.ask_client(
            RemotingCommand(code=RequestCode.CHECK_TRANSACTION_STATE, ext_fields=fields, body=half)
        )
        wait_until("the outcome", lambda: hostile.broker.count(RequestCode.END_TRANSACTION))

    assert elapsed_s > 2.5
    assert [message.body for message in asked] == [b"half"]


def test_only_so_many_questions_wait_and_those_for_other_groups_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_outcomes, "QUESTIONS_MAX", 2)
    unused: Any = None
    coordinator = Coordinator(publisher=make_publisher(), check=unused, report=unused)

    def ask(group: str, offset: int) -> None:
        half = record("T", 0, offset, properties=f"PGROUP\x01{group}\x02UNIQ_KEY\x01ID\x02")
        fields = {"tranStateTableOffset": f"{offset}", "commitLogOffset": "0", "msgId": "ID"}
        code = RequestCode.CHECK_TRANSACTION_STATE
        request = RemotingCommand(code=code, ext_fields=fields, body=half)
        transaction_outcomes.note_question({"GID_p": coordinator}, "b:1", request)

    ask("GID_other", 0)
    for offset in range(1, 5):
        ask("GID_p", offset)

    offsets = [question.header.tran_state_table_offset for question in coordinator.questions]
    assert offsets == [1, 2]


def test_two_of_a_group_in_one_instance_are_refused(
    make_producer: Callable[..., TransactionProducer],
    cluster: EmbeddedCluster,
    group: str,
    ledger: Ledger,
) -> None:
    make_producer(instance_name="shared")
    other = TransactionProducer(
        group, name_server=cluster.name_server, check=ledger, instance_name="shared"
    )
    with pytest.raises(UsageError, match="give each its own instance_name"), other:
        raise AssertionError("two answered for one group")

    assert repr(other).endswith("closed>")


@pytest.mark.parametrize("check", [None, lambda: COMMIT, "COMMIT"])
def test_a_check_that_cannot_be_called_is_refused(check: Any) -> None:
    with pytest.raises(ConfigError, match="check is"):
        TransactionProducer("GID_x", name_server="127.0.0.1:1", check=check)


def test_a_plain_producer_of_the_same_instance_goes_on(
    make_producer: Callable[..., TransactionProducer],
    cluster: EmbeddedCluster,
    topic: str,
    received: Received,
) -> None:
    producer = make_producer(instance_name="of-both")
    plain = Producer("GID_plain", name_server=cluster.name_server, instance_name="of-both")
    with plain:
        plain.send(Message(topic, b"plain"))
        producer.commit(producer.send_half(Message(topic, b"committed")))

    wait_until("two messages", lambda: len(received.messages) >= 2)
    assert set(received.bodies) == {"plain", "committed"}


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_the_asyncio_face_does_the_same(
    cluster: EmbeddedCluster, group: str, topic: str, received: Received, is_coroutine: bool
) -> None:
    ledger = Ledger()

    async def check(message: MessageExt) -> TransactionState:
        await asyncio.sleep(0)
        return ledger(message)

    async def run() -> HalfMessage:
        producer = AsyncTransactionProducer(
            group,
            name_server=cluster.name_server,
            check=check if is_coroutine else ledger,
            namespace="ns",
        )
        async with producer:
            async with producer.transaction(Message(topic, b"1")):
                pass
            assert ROLLBACK is await producer.rollback(
                await producer.send_half(Message(topic, b"2"))
            )
            half = await producer.send_half(Message(topic, b"3"))
            ledger.outcomes[half.msg_id] = COMMIT
            async with asyncio.timeout(20):
                while not ledger.asked:
                    await asyncio.sleep(0.02)
        return half

    half = asyncio.run(run())

    assert (half.msg_id, topic) == (ledger.asked[0].msg_id, ledger.asked[0].topic)


async def test_a_producer_whose_loop_was_cancelled_begins_no_transaction(
    cluster: EmbeddedCluster, group: str, topic: str, received: Received, ledger: Ledger
) -> None:
    async with AsyncTransactionProducer(
        group, name_server=cluster.name_server, check=ledger
    ) as producer:
        half = await producer.send_half(Message(topic, b"x"))
        (loop,) = [t for t in asyncio.all_tasks() if t.get_name().startswith("sparrowmq-")]
        loop.cancel()
        await asyncio.wait({loop})

        with pytest.raises(UsageError, match="has failed, and answers no broker"):
            await producer.send_half(Message(topic, b"y"))
        assert await producer.commit(half) is COMMIT


def test_a_broker_that_is_killed_and_started_anew_asks_again(ledger: Ledger) -> None:
    received = Received()
    with EmbeddedCluster(options=OPTIONS) as cluster:
        cluster.create_topic("again", queues=1)
        name_server = cluster.name_server
        producer = TransactionProducer("GID_again", name_server=name_server, check=ledger)
        consumer = PushConsumer("GID_again_c", name_server=name_server, listener=received)
        with producer, consumer:
            half = producer.send_half(Message("again", b"kept"))
            cluster.kill()
            cluster.start()
            asked = len(ledger.asked)
            wait_until("a question", lambda: len(ledger.asked) > asked, timeout_s=30)
            ledger.outcomes[half.msg_id] = COMMIT
            consumer.subscribe("again")
            consumer.start()
            wait_until("the message", lambda: received.messages)

    assert set(received.bodies) == {"kept"}


def test_broker_lost_during_a_heartbeat_has_the_next_one_soon() -> None:
    script = NameServerScript()
    script.brokers = {"a": "a:1", "b": "b:1"}

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            found = script.answer(request)
            assert isinstance(found, RemotingCommand)
            return found
        if address == "b:1" and is_lost:
            note_broker_lost({"GP": coordinator}, "a:1", now_ms=run.now_ms)
        run.now_ms += 10
        return response_to(request)

    run, is_lost = Play(answer), True
    coordinator = Coordinator(
        publisher=make_publisher(), check=lambda message: UNKNOWN, report=lambda notice: None
    )
    run(transactions._heartbeat(coordinator))
    assert coordinator.heartbeat_due_ms - run.now_ms == HEARTBEAT_RETRY_MS
    is_lost = False
    run(transactions._heartbeat(coordinator))
    assert coordinator.heartbeat_due_ms - run.now_ms > HEARTBEAT_RETRY_MS


@pytest.mark.parametrize("silent", [None, "ns:1", "b:1"])
def test_heartbeat_that_did_not_reach_all_brokers_is_repeated_soon(silent: str | None) -> None:
    script = NameServerScript()
    script.brokers = {"a": "a:1", "b": "b:1"}

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if address == silent:
            raise ConnectFailed("away", address=address)
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            found = script.answer(request)
            assert isinstance(found, RemotingCommand)
            return found
        reached.append(address)
        return response_to(request)

    run, reached = Play(answer), list[str]()
    coordinator = Coordinator(
        publisher=make_publisher(), check=lambda message: UNKNOWN, report=lambda notice: None
    )
    # Those known before, where no name server answers.
    coordinator.addresses = ("a:1",)
    run(transactions._heartbeat(coordinator))

    is_soon = coordinator.heartbeat_due_ms - run.now_ms == HEARTBEAT_RETRY_MS
    assert (is_soon, coordinator.is_beating) == (silent is not None, False)
    assert reached == (["a:1"] if silent else ["a:1", "b:1"])


def ask_about(coordinator: Coordinator, count: int) -> None:
    for offset in range(count):
        half = record("T", 0, offset, properties=f"PGROUP\x01GP\x02UNIQ_KEY\x01ID{offset}\x02")
        fields = {"tranStateTableOffset": f"{offset}", "commitLogOffset": "0", "msgId": "ID"}
        code = RequestCode.CHECK_TRANSACTION_STATE
        request = RemotingCommand(code=code, ext_fields=fields, body=half)
        transaction_outcomes.note_question({"GP": coordinator}, "b:1", request)


class Closing(Play):
    """Closes a producer once it waits; its calls of `check` may not come to an end."""

    def __init__(self, *, answers: bool, raises: bool = False) -> None:
        super().__init__(lambda _, request: response_to(request))
        self.answers = answers
        self.checks = 0
        self.coordinator = Coordinator(
            publisher=make_publisher(), check=self.check, report=lambda notice: None
        )
        self.raises = raises
        # No heartbeat is due.
        self.coordinator.heartbeat_due_ms = self.now_ms + 1_000_000

    def check(self, message: MessageExt) -> TransactionState:
        if self.raises:
            raise LookupError(message.msg_id)
        return COMMIT

    def carry_out(self, effect: Any) -> Any:
        if isinstance(effect, Spawn) and effect.name == "check":
            self.checks += 1
            if not self.answers:
                effect.operation.close()
                return PlayedTask(effect.name)
        if isinstance(effect, Wait):
            self.coordinator.close()
            self.now_ms += effect.timeout_ms or 0
            return False
        return super().carry_out(effect)


@pytest.mark.parametrize("raises", [False, True])
def test_each_question_is_answered_also_after_checks_that_fail(*, raises: bool) -> None:
    run = Closing(answers=True, raises=raises)
    ask_about(run.coordinator, 9)
    begun_ms = run.now_ms
    run(transactions.serve(run.coordinator))

    ends = [each for _, each in run.requests if each.code == RequestCode.END_TRANSACTION]
    asked = [(each.ext_fields or {})["tranStateTableOffset"] for each in ends]
    assert (run.checks, asked) == (9, [] if raises else [str(number) for number in range(9)])
    # The broker counts it as the answer to its question.
    assert {(each.ext_fields or {})["fromTransactionCheck"] for each in ends} <= {"true"}
    # Closing waits for nothing more.
    assert run.now_ms - begun_ms == 1_000_000


def test_only_so_many_checks_run_at_once_and_closing_waits_for_them_as_for_a_request() -> None:
    run = Closing(answers=False)
    ask_about(run.coordinator, 9)
    begun_ms, waiting_ms = run.now_ms, 1_000_000
    run(transactions.serve(run.coordinator))

    assert run.checks == transaction_outcomes.CHECKS_AT_ONCE
    timeout_ms = run.coordinator.publisher.config.send_timeout_ms
    assert run.now_ms - begun_ms == waiting_ms + timeout_ms


def test_producer_whose_loop_fails_answers_all_the_same(
    make_producer: Callable[..., TransactionProducer],
    topic: str,
    received: Received,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocking_transaction, "RESTART_S", 0.01)
    monkeypatch.setattr(transactions, "serve", failing_once(transactions.serve))
    producer = make_producer()
    half = producer.send_half(Message(topic, b"half"))
    ledger.outcomes[half.msg_id] = COMMIT

    wait_until("the message", lambda: received.bodies["half"])


def test_no_more_checks_run_at_once_after_the_loop_has_failed() -> None:
    class Failing(Closing):
        has_failed = False

        def carry_out(self, effect: Any) -> Any:
            if isinstance(effect, Wait) and not self.has_failed:
                self.has_failed = True
                raise LookupError("a mistake")
            return super().carry_out(effect)

    run = Failing(answers=False)
    ask_about(run.coordinator, 9)
    with pytest.raises(LookupError):
        run(transactions.serve(run.coordinator))
    run(transactions.serve(run.coordinator))

    assert run.checks == transaction_outcomes.CHECKS_AT_ONCE


def test_heartbeat_that_fails_is_followed_by_another() -> None:
    class Beating(Play):
        def carry_out(self, effect: Any) -> Any:
            if isinstance(effect, Wait) and not effect.event.is_set:
                if heartbeats:
                    coordinator.close()
                assert effect.timeout_ms is not None, "nothing ends this wait"
                self.now_ms += effect.timeout_ms
            return super().carry_out(effect)

    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.HEART_BEAT:
            heartbeats.append(run.now_ms)
        elif request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            asked.append(run.now_ms)
            if len(asked) == 1:
                raise LookupError("a mistake")
            found = script.answer(request)
            assert isinstance(found, RemotingCommand)
            return found
        return response_to(request)

    script, heartbeats, asked = NameServerScript(), list[int](), list[int]()
    script.brokers = {"a": "a:1"}
    run = Beating(answer)
    coordinator = Coordinator(
        publisher=make_publisher(), check=lambda message: UNKNOWN, report=lambda notice: None
    )
    run(transactions.serve(coordinator))

    assert (len(asked), len(heartbeats)) == (2, 1)


async def test_close_that_is_cut_short_lets_another_producer_of_its_group_start() -> None:
    settings: dict[str, Any] = {"name_server": "127.0.0.1:1", "instance_name": "cut-short"}

    def check(message: MessageExt) -> TransactionState:
        return UNKNOWN

    # It keeps their connections open.
    async with AsyncProducer("GID_plain", **settings):
        producer = AsyncTransactionProducer("GID_t", check=check, **settings)
        await producer.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await producer.close()
        await producer.close()

        async with AsyncTransactionProducer("GID_t", check=check, **settings) as other:
            assert other.client_id == producer.client_id
