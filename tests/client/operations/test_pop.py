"""Pops, and the loop that pops for a push consumer, without sockets."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from hostile import record
from play import Play, PlayedTask, make_idle_subscriber
from sparrowmq import (
    BrokerError,
    ConsumeContext,
    MessageExt,
    TopicRouteNotFound,
)
from sparrowmq.calling.effects import (
    Event,
    Invoke,
    Join,
    Operation,
    Spawn,
    Task,
    Wait,
    cancel,
    sleep,
    spawn,
    wait,
)
from sparrowmq.client.assembly import (
    add_subscription,
    make_pop_source,
    make_subscription,
    subscribe_pops,
)
from sparrowmq.client.operations import pop, pop_loop
from sparrowmq.client.operations.deliver import Judged
from sparrowmq.client.operations.pop import PopSource
from sparrowmq.client.operations.routes import ROUTE_MS
from sparrowmq.client.subscriber import GivenUp, RequestFailed, Subscriber
from sparrowmq.errors import ConnectFailed, InvokeTimeout
from sparrowmq.membership.actions import Deliver
from sparrowmq.model.message import (
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_POP_CK,
)
from sparrowmq.protocol.bodies import (
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    QueueData,
    TopicRouteData,
    decode_body,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.compression import COMPRESSED
from sparrowmq.protocol.pop_handle import BatchAckBody
from sparrowmq.protocol.trace import ConsumedCode


class Brokers:
    """Brokers a and b with a message each in each topic, or several; some servers are away."""

    def __init__(self) -> None:
        self.away: set[str] = set()
        self.topics = {"T"}
        self.perm = PERM_READ | PERM_WRITE
        self.refusal: int | None = None
        self.properties = ""
        self.count, self.packed = 1, b""
        # What their addresses end with.
        self.port = 1
        self.acknowledged: list[str] = []

    def __call__(self, address: str, request: RemotingCommand) -> RemotingCommand:
        if address in self.away:
            raise ConnectFailed("away", address=address)
        if request.code == RequestCode.POP_MESSAGE and not self.count:
            return response_to(request, ResponseCode.POLLING_TIMEOUT)
        if request.code == RequestCode.POP_MESSAGE:
            topic = (request.ext_fields or {})["topic"]
            stored: dict[str, Any] = {"properties": self.properties}
            if self.packed:
                stored["sys_flag"] = COMPRESSED
            offsets = range(7, 7 + self.count)
            body = b"".join(
                record(topic, 0, offset, self.packed or address.encode(), **stored)
                for offset in offsets
            )
            fields = {"popTime": "5", "invisibleTime": "60000", "reviveQid": "0", "restNum": "0"}
            fields["startOffsetInfo"] = "0 0 7"
            fields["msgOffsetInfo"] = f"0 0 {','.join(map(str, offsets))}"
            return response_to(request, ext_fields=fields, body=body)
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if (request.ext_fields or {})["topic"] not in self.topics:
                return response_to(request, ResponseCode.TOPIC_NOT_EXIST)
            data = TopicRouteData(
                broker_datas=[
                    BrokerData(broker_name=name, broker_addrs={0: f"{name}:{self.port}"})
                    for name in "ab"
                ],
                queue_datas=[
                    QueueData(
                        broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=self.perm
                    )
                    for name in "ab"
                ],
            )
            return response_to(request, body=encode_body(data))
        if self.refusal is not None and address == "a:1":
            return response_to(request, self.refusal)
        self.acknowledged.append(address)
        return response_to(request)


def make_source(*topics: str) -> PopSource:
    source = make_pop_source("GID", "ns:1")
    for topic in topics:
        subscribe_pops(source, topic, "*")
    return source


def receive_once(run: Play, source: PopSource) -> list[MessageExt]:
    return run(pop.receive(source, count_max=2, invisible_ms=1, wait_ms=0))


def receive_of_both(run: Play, source: PopSource) -> list[MessageExt]:
    found = [receive_once(run, source) for _ in "ab"]
    return [message for messages in found for message in messages]


@pytest.mark.parametrize("refusal", [None, ResponseCode.SYSTEM_BUSY])
def test_messages_of_a_broker_are_acknowledged_whatever_another_says(refusal: int | None) -> None:
    brokers = Brokers()
    run, source = Play(brokers), make_source("T")
    messages = receive_of_both(run, source)
    assert {message.broker_name for message in messages} == {"a", "b"}
    brokers.refusal = refusal
    brokers.away = set() if refusal else {"a:1"}

    for given in (messages, messages[::-1]):
        brokers.acknowledged.clear()
        with pytest.raises(BrokerError if refusal else ConnectFailed):
            run(pop.acknowledge(source, given))
        assert brokers.acknowledged == ["b:1"]


@pytest.mark.parametrize(("tag", "count"), [("BB", 2), ("Aa", 0), ("x", 2)])
@pytest.mark.parametrize("is_away", [False, True])
def test_tag_with_the_hash_code_of_a_wanted_one_is_acknowledged(
    tag: str, count: int, *, is_away: bool
) -> None:
    brokers = Brokers()
    brokers.properties = f"TAGS\x01{tag}"
    run, source = Play(brokers), make_source()
    subscribe_pops(source, "T", "BB")
    brokers.refusal = ResponseCode.SYSTEM_BUSY if is_away else None

    # Brokers of RocketMQ's compare the codes, and deliver what came before under another tag.
    assert len(receive_of_both(run, source)) == count
    assert (len(brokers.acknowledged) > 0) == (count == 0)


@pytest.mark.parametrize("refusal", [None, ResponseCode.SYSTEM_BUSY])
def test_messages_that_inflate_beyond_the_bound_of_an_answer_are_given_back(
    refusal: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop, "INFLATED_SUM_MAX", 3 << 20)
    brokers, body = Brokers(), bytes(1 << 20)
    brokers.count, brokers.packed, brokers.refusal = 5, zlib.compress(body), refusal
    run, source = Play(brokers), make_source("T")

    for messages in (receive_once(run, source), receive_once(run, source)):
        assert [message.queue_offset for message in messages] == [7, 8, 9]
        assert {message.body for message in messages} == {body}
    returned = [
        request.ext_fields or {}
        for _, request in run.requests
        if request.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    ]
    assert [fields["offset"] for fields in returned] == ["10", "11"] * 2
    assert {(fields["invisibleTime"], fields["suspend"]) for fields in returned} == {("0", "true")}
    assert run.slept_ms, "the driver gets a turn"


def make_popping(
    source: PopSource, *, done: Sequence[MessageExt] = (), **settings: Any
) -> pop_loop._Popping:
    subscriber = make_idle_subscriber("GID", **settings)
    return pop_loop._Popping(subscriber, source, done=list(done))


def test_push_consumer_asks_a_broker_again_alone() -> None:
    brokers = Brokers()
    run, source = Play(brokers), make_source("T")
    popping = make_popping(source, done=receive_of_both(run, source) * 2)
    brokers.away = {"a:1"}

    run(pop_loop._acknowledge_done(popping))
    asked = [
        address for address, each in run.requests if each.code == RequestCode.BATCH_ACK_MESSAGE
    ]
    assert sorted(asked) == ["a:1"] * pop_loop.ATTEMPTS_MAX + ["b:1"]
    assert not popping.has_open_ends


@pytest.mark.parametrize(("now_ms", "delivered"), [(999, 1), (1_000, 0)])
def test_listener_gets_no_message_that_others_may_have_by_now(now_ms: int, delivered: int) -> None:
    run, source = Play(Brokers()), make_source("T")
    (message, *_) = receive_of_both(run, source)
    popping = make_popping(make_source())
    popping.waiting.append(pop_loop._Batch(message.queue, [message], until_ms=1_000, popped_ms=0))
    run(pop_loop._begin_due(popping, now_ms))

    assert popping.subscriber.counters.delivered == delivered
    assert not popping.waiting


@pytest.mark.parametrize("is_away", [False, True])
def test_waiting_message_whose_return_fails_keeps_no_other_back(*, is_away: bool) -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if (request.ext_fields or {}).get("offset") == "7":
            if is_away:
                raise ConnectFailed("away", address=address)
            return response_to(request, ResponseCode.NO_MESSAGE)
        return brokers(address, request)

    brokers = Brokers()
    brokers.count = 3
    run, source = Play(brokers), make_source("T")
    messages = receive_once(run, source)
    popping, asked = make_popping(source), len(run.requests)
    popping.waiting.append(pop_loop._Batch(messages[0].queue, messages, 1_000, popped_ms=5))
    assert popping.take_waiting(4) == []
    run.handler = answer
    run(pop_loop._give_back(popping, popping.take_waiting(5)))

    given = [each.ext_fields or {} for _, each in run.requests[asked:]]
    assert [fields["offset"] for fields in given] == ["7", "8", "9"]
    assert {(fields["invisibleTime"], fields["suspend"]) for fields in given} == {("0", "true")}
    assert not popping.has_open_ends
    assert popping.subscriber.wake.is_set


def test_close_acknowledges_while_a_broker_does_not_answer_what_is_given_back(
    run: Callable[[Operation[Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done, waiting = receive_of_both(Play(Brokers()), make_source("T"))
    steps, is_told = list[str](), Event()

    def acknowledge(_: object, messages: Sequence[MessageExt]) -> Operation[None]:
        assert messages == [done]
        steps.append("acknowledged")
        is_told.set()
        yield from ()

    def give_back(_: object, messages: Sequence[MessageExt]) -> Operation[None]:
        assert messages == [waiting]
        yield from wait(is_told, timeout_ms=2_000)
        yield from sleep(20)
        steps.append("given back")

    monkeypatch.setattr(pop_loop, "acknowledge", acknowledge)
    monkeypatch.setattr(pop_loop, "give_back", give_back)
    popping = make_popping(make_source("T"), done=[done])
    popping.waiting.append(pop_loop._Batch(waiting.queue, [waiting], until_ms=0, popped_ms=0))

    run(pop_loop._leave(popping))
    assert steps == ["acknowledged", "given back"]


def test_dead_letter_whose_acknowledgement_is_not_answered_is_one() -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.ACK_MESSAGE and not lost:
            lost.append(address)
            raise InvokeTimeout("late", address=address)
        return brokers(address, request)

    brokers, lost, reported = Brokers(), list[str](), list[object]()
    run, source = Play(brokers), make_source("T")
    (message, *_) = receive_of_both(run, source)
    popping, asked = make_popping(source), len(run.requests)
    popping.subscriber.report = reported.append
    batch = pop_loop._Batch(message.queue, [message], until_ms=0, popped_ms=0)
    run.handler = answer
    run(pop_loop._return_failed(popping, batch, Judged(0, -1, {}, ConsumedCode.FAILED)))
    run(pop_loop._acknowledge_done(popping))

    codes = [each.code for _, each in run.requests[asked:]]
    ack = RequestCode.ACK_MESSAGE
    assert codes == [RequestCode.CONSUMER_SEND_MSG_BACK, ack, ack]
    assert GivenUp(message.queue, (message,), is_broadcasting=False) in reported


def test_message_whose_dead_letter_is_refused_is_not_acknowledged() -> None:
    brokers, reported = Brokers(), list[object]()
    run, source = Play(brokers), make_source("T")
    message = next(m for m in receive_of_both(run, source) if m.broker_name == "a")
    popping, brokers.refusal = make_popping(source), ResponseCode.SYSTEM_ERROR
    popping.subscriber.report = reported.append
    batch = pop_loop._Batch(message.queue, [message], until_ms=0, popped_ms=0)
    run(pop_loop._return_failed(popping, batch, Judged(0, -1, {}, ConsumedCode.FAILED)))

    assert popping.done == []
    assert [type(each) for each in reported] == [RequestFailed]


class Unrun(Play):
    """Begins no call of the listener: its tasks wait for a thread."""

    def carry_out(self, effect: Any) -> Any:
        if isinstance(effect, Spawn) and effect.name == "calls of the listener":
            effect.operation.close()
            return PlayedTask(effect.name)
        return super().carry_out(effect)


def messages_of(count: int, **fields: Any) -> list[MessageExt]:
    return [
        MessageExt("T", b"", {PROPERTY_POP_CK: f"0 5 60000 0 0 b 0 {at}"}, "b", 0, at, 0, **fields)
        for at in range(count)
    ]


@pytest.mark.parametrize(
    ("is_quick", "is_behind", "pop_count", "pops"),
    [
        (False, True, 0, 1),
        (False, True, 1, 0),
        (True, False, 0, 1),
        (True, False, 1, 0),
        (True, True, 0, pop_loop.POPS_MAX),
        (True, True, 6, pop_loop.POPS_MAX - 6),
    ],
)
def test_no_more_is_popped_at_once_than_the_listener_can_take(
    pop_count: int, pops: int, *, is_quick: bool, is_behind: bool
) -> None:
    run = Unrun(Brokers())
    popping = make_popping(make_source("T"), consume_thread_count=3)
    popping.subscriber.listener_calls.is_quick = is_quick
    popping.is_behind = is_behind
    for _ in range(pop_count):
        popping.pops.append(under_way := PlayedTask("pop"))
        under_way.done = False
    (message,) = messages_of(1)
    popping.waiting.append(pop_loop._Batch(message.queue, [message], 1_000, popped_ms=0))
    run(pop_loop._begin_due(popping, 0))

    asked = [each for _, each in run.requests if each.code == RequestCode.POP_MESSAGE]
    counts = [(each.ext_fields or {})["maxMsgNums"] for each in asked]
    # The listener has one message of the three that it may have.
    assert counts == ["32" if is_quick else "2"] * pops


def test_messages_whose_calls_did_not_begin_wait_again_in_their_order_and_are_given_back() -> None:
    run = Unrun(Brokers())
    popping, messages = make_popping(make_source()), messages_of(3)
    popping.waiting.extend(
        pop_loop._Batch(each.queue, [each], 60_000, popped_ms=0) for each in messages
    )
    run(pop_loop._begin_due(popping, 0))
    assert (len(popping.waiting), popping.subscriber.counters.delivered) == (0, 3)
    pop_loop._take_back(popping, 0)
    assert not popping.waiting

    popping.subscriber.member.leave(0)
    pop_loop._take_back(popping, 0)

    assert [batch.messages for batch in popping.waiting] == [[each] for each in messages]
    counters = popping.subscriber.counters
    assert counters.delivered == 3
    counters.note_delivered(4)
    # Prometheus takes a counter that goes down for one that began anew.
    assert counters.delivered == 4
    assert not popping.has_open_ends


def test_message_that_came_again_has_a_call_without_the_one_at_its_offset_in_the_queue() -> None:
    first, second = messages_of(2)
    again = MessageExt("T", b"", {PROPERTY_POP_CK: "0 5 60000 0 1 b 0 0"}, "b", 0, 0, 0)

    # Brokers of RocketMQ number it in a retry topic; decisions are by offset.
    calls = [found for _, found in pop_loop._split([first, again, second], 2)]
    assert calls == [[first, second], [again]]
    assert [len(found) for _, found in pop_loop._split(messages_of(5), 2)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("reconsume_times", "level", "delay_ms"),
    [(0, 0, 10_000), (1, 0, 30_000), (15, 0, 7_200_000), (1, 2, 5_000), (1, 99, 7_200_000)],
)
def test_failed_message_is_invisible_for_the_delay_of_its_level(
    reconsume_times: int, level: int, delay_ms: int
) -> None:
    run, popping = Play(Brokers()), make_popping(make_source("T"))
    (message,) = messages_of(1, reconsume_times=reconsume_times)
    batch = pop_loop._Batch(message.queue, [message], until_ms=0, popped_ms=0)
    run(pop_loop._return_failed(popping, batch, Judged(0, level, {}, ConsumedCode.FAILED)))

    changes = [
        (fields["invisibleTime"], fields["suspend"])
        for _, each in run.requests
        if each.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        for fields in [each.ext_fields or {}]
    ]
    assert changes[0] == (str(delay_ms), "false")
    assert popping.subscriber.counters.sent_back == 1


@pytest.mark.parametrize(
    ("settings", "reconsume_times", "is_dead"),
    [({}, 15, False), ({}, 16, True), ({"max_reconsume_times": 2}, 2, True)],
)
def test_message_that_fails_too_often_is_a_dead_letter(
    settings: dict[str, Any], reconsume_times: int, *, is_dead: bool
) -> None:
    run, popping = Play(Brokers()), make_popping(make_source("T"), **settings)
    (message,) = messages_of(1, reconsume_times=reconsume_times)
    batch = pop_loop._Batch(message.queue, [message], until_ms=0, popped_ms=0)
    run(pop_loop._return_failed(popping, batch, Judged(0, 0, {}, ConsumedCode.FAILED)))

    code = (
        RequestCode.CONSUMER_SEND_MSG_BACK if is_dead else RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    )
    assert code in [each.code for _, each in run.requests]
    assert popping.done == [message] * is_dead


@pytest.mark.parametrize("is_decided", [False, True])
def test_call_ends_with_all_of_its_messages_and_decisions(*, is_decided: bool) -> None:
    def listen(messages: list[MessageExt], context: ConsumeContext) -> None:
        if is_decided:
            context.dead_letter(messages[1], reason="bad")

    run, popping, messages = Play(Brokers()), make_popping(make_source("T")), messages_of(3)
    popping.subscriber.listener = listen
    popping.source.subscriptions.clear()
    popping.waiting.append(pop_loop._Batch(messages[0].queue, messages, 60_000, popped_ms=0))
    run(pop_loop._begin_due(popping, 0))
    run(pop_loop._settle_ended(popping, 0))

    codes = [each.code for _, each in run.requests]
    assert codes.count(RequestCode.CONSUMER_SEND_MSG_BACK) == int(is_decided)
    run(pop_loop._settle_ended(popping, 0))
    acked = [each for _, each in run.requests if each.code == RequestCode.BATCH_ACK_MESSAGE]
    acks = [ack for each in acked for ack in decode_body(BatchAckBody, each.body).acks]
    assert sorted(offset for ack in acks for offset in ack.offsets()) == [0, 1, 2]
    assert not popping.has_open_ends


def test_close_waits_until_the_acknowledgements_are_answered(
    run: Callable[[Operation[Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    acked: list[MessageExt] = []

    def acknowledge(_: object, messages: Sequence[MessageExt]) -> Operation[None]:
        yield from sleep(20)
        acked.extend(messages)

    monkeypatch.setattr(pop_loop, "acknowledge", acknowledge)
    messages = messages_of(3)
    popping = make_popping(make_source("T"), done=messages)

    run(pop_loop._leave(popping))
    assert acked == messages


@pytest.mark.parametrize(("begun_ms", "counts"), [(None, "true"), (0, "false")])
def test_renewal_counts_as_an_attempt_once_the_listener_has_the_message(
    begun_ms: int | None, counts: str
) -> None:
    run, popping, (message,) = Play(Brokers()), make_popping(make_source("T")), messages_of(1)
    batch = pop_loop._Batch(message.queue, [message], 0, popped_ms=0, begun_ms=begun_ms)
    run(pop_loop._renew(popping, batch))

    # `suspend` means that the change is no attempt.
    assert (run.requests[-1][1].ext_fields or {})["suspend"] == counts


def test_message_is_acknowledged_by_the_handle_of_a_renewal_under_way() -> None:
    class Renewed(Play):
        def carry_out(self, effect: Any) -> Any:
            if isinstance(effect, Join) and effect.task is renewal:
                batch.messages[0] = msgspec.structs.replace(
                    message, properties={PROPERTY_POP_CK: "0 9 60000 0 0 b 0 0"}
                )
            return super().carry_out(effect)

    run, popping, renewal = Renewed(Brokers()), make_popping(make_source("T")), PlayedTask("renew")
    popping.source.subscriptions.clear()
    (message,) = messages_of(1)
    batch = pop_loop._Batch(message.queue, [message], 60_000, popped_ms=0, renewal=renewal)
    popping.waiting.append(batch)
    run(pop_loop._begin_due(popping, 0))
    for _ in range(2):
        run(pop_loop._settle_ended(popping, 0))

    acked = [each for _, each in run.requests if each.code == RequestCode.ACK_MESSAGE]
    assert [(each.ext_fields or {})["extraInfo"][:4] for each in acked] == ["0 9 "]


def test_message_at_one_of_several_brokers_is_received_without_a_wait_at_another() -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.POP_MESSAGE and address == "a:1":
            return response_to(request, ResponseCode.POLLING_TIMEOUT)
        return Brokers()(address, request)

    run, source = Play(answer), make_source("T")
    for _ in range(2):
        (found,) = run(pop.receive(source, count_max=2, invisible_ms=1, wait_ms=30_000))
        assert found.broker_name == "b"
    pops = [each for _, each in run.requests if each.code == RequestCode.POP_MESSAGE]
    assert {(each.ext_fields or {})["pollTime"] for each in pops} == {"0"}


def test_message_tells_when_it_was_popped_first() -> None:
    (message, *_) = receive_of_both(Play(Brokers()), make_source("T"))
    changed = pop._replace_handle(message, pop._handle_of(message), 9)

    assert changed.properties[PROPERTY_FIRST_POP_TIME] == "5"


@pytest.mark.parametrize(("working_ms", "renewals"), [(900_000, 1), (900_001, 0)])
def test_messages_of_a_listener_that_works_too_long_are_not_renewed(
    working_ms: int, renewals: int
) -> None:
    brokers = Brokers()
    run, source = Play(brokers), make_source("T")
    (message, *_) = receive_of_both(run, source)
    popping = make_popping(source)
    batch = pop_loop._Batch(message.queue, [message], until_ms=working_ms, popped_ms=0, begun_ms=0)
    popping.handed[0] = Deliver(message.queue, 0, 0, ()), batch
    brokers.refusal, asked = ResponseCode.SYSTEM_ERROR, len(run.requests)
    run(pop_loop._renew_due(popping, working_ms))

    codes = [request.code for _, request in run.requests[asked:]]
    assert codes == [RequestCode.CHANGE_MESSAGE_INVISIBLETIME] * renewals


def test_message_that_is_being_renewed_is_acknowledged_by_its_new_handle(
    run: Callable[[Operation[Any]], Any],
) -> None:
    (old, new) = receive_of_both(Play(Brokers()), make_source("T"))
    popping = make_popping(make_source("T"))
    batch = pop_loop._Batch(old.queue, [old], until_ms=0, popped_ms=0)

    def renew() -> Operation[None]:
        yield from sleep(20)
        batch.messages[0] = new

    def operation() -> Operation[None]:
        batch.renewal = yield from spawn(renew(), name="renewal")
        judged = Judged(1, 0, {}, ConsumedCode.SUCCESS)
        yield from pop_loop._return_failed(popping, batch, judged)

    run(operation())
    assert popping.done == [new]


@pytest.mark.parametrize("room", [0, 1])
def test_no_more_is_popped_while_many_messages_are_not_acknowledged(room: int) -> None:
    run, source = Play(Brokers()), make_source("T")
    (message, *_) = receive_of_both(run, source)
    popping = make_popping(source, done=[message] * (pop_loop.UNACKNOWLEDGED_MAX - room))
    asked = len(run.requests)
    run(pop_loop._begin_due(popping, 0))

    assert [each.code for _, each in run.requests[asked:]] == [RequestCode.POP_MESSAGE] * room


def test_routes_that_are_known_serve_while_no_name_server_answers() -> None:
    brokers = Brokers()
    run, source = Play(brokers), make_source("T")
    receive_of_both(run, source)
    brokers.away = {"ns:1", "a:1"}
    run.now_ms += ROUTE_MS + 1

    assert {message.broker_name for message in receive_of_both(run, source)} == {"b"}
    asked = len(run.requests)
    run(pop.receive(source, count_max=2, invisible_ms=1, wait_ms=0))
    assert [address for address, _ in run.requests[asked:]].count("ns:1") <= 1


def test_broker_that_is_away_is_an_error_only_where_no_other_answers() -> None:
    brokers = Brokers()
    run, source = Play(brokers), make_source("T")
    brokers.count, brokers.away = 0, {"a:1"}
    assert receive_of_both(run, source) == []

    brokers.away = {"a:1", "b:1"}
    with pytest.raises(ConnectFailed):
        receive_once(run, source)


def test_answer_is_waited_for_beyond_the_time_for_which_a_broker_may_hold_it() -> None:
    brokers = Brokers()
    run, source = Play(brokers), make_source("T")
    brokers.count = 0

    assert run(pop.receive(source, count_max=2, invisible_ms=1, wait_ms=1_500)) == []
    held_ms, beyond_ms = set[int](), set[int]()
    for (_, request), waits_ms in zip(run.requests, run.waits_ms, strict=True):
        if request.code == RequestCode.POP_MESSAGE:
            held_ms.add(int((request.ext_fields or {})["pollTime"]))
            beyond_ms.add(waits_ms - int((request.ext_fields or {})["pollTime"]))
    assert max(held_ms) == pop.TURN_MS
    assert beyond_ms == {pop.ANSWER_MS}


@pytest.mark.parametrize(
    ("mark", "topic"), [("0", "T"), ("1", "%RETRY%GID_T"), ("2", "%RETRY%GID+T")]
)
def test_retried_message_is_acknowledged_in_the_topic_that_its_handle_means(
    mark: str, topic: str
) -> None:
    run, source = Play(Brokers()), make_source("T")
    message = MessageExt("T", b"", {PROPERTY_POP_CK: f"7 5 60000 0 {mark} b 0 7"}, "b", 0, 7, 0)
    run(pop.acknowledge(source, [message]))

    address, request = run.requests[-1]
    assert (address, (request.ext_fields or {})["topic"]) == ("b:1", topic)


def test_each_of_many_messages_is_acknowledged_once() -> None:
    run, source = Play(Brokers()), make_source("T")
    # The last lies too far behind the first of its pop for a bit set.
    offsets = [*range(pop.ACKS_PER_BATCH_MAX + 1), 100_000]
    run(
        pop.acknowledge(
            source,
            [
                MessageExt("T", b"", {PROPERTY_POP_CK: f"0 5 60000 0 0 b 0 {at}"}, "b", 0, at, 0)
                for at in offsets
            ],
        )
    )

    found: list[int] = []
    for _, request in run.requests:
        if request.code == RequestCode.BATCH_ACK_MESSAGE:
            for ack in decode_body(BatchAckBody, request.body).acks:
                found += ack.offsets()
        elif request.code == RequestCode.ACK_MESSAGE:
            found.append(int((request.ext_fields or {})["offset"]))
    assert sorted(found) == offsets


def test_brokers_that_have_moved_are_found_at_once() -> None:
    brokers = Brokers()
    run, source = Play(brokers), make_source("T")
    receive_of_both(run, source)
    brokers.away, brokers.port = {"a:1", "b:1"}, 2

    (message,) = receive_once(run, source)
    assert message.body in (b"a:2", b"b:2")


def test_topic_that_is_missing_keeps_no_other_back() -> None:
    brokers = Brokers()
    run, source = Play(brokers), make_source("missing", "T")

    assert [message.topic for message in receive_of_both(run, source)] == ["T", "T"]
    assert isinstance(source.missing["missing"], TopicRouteNotFound)
    brokers.topics.add("missing")
    found = receive_of_both(run, source) + receive_of_both(run, source)
    assert ({message.topic for message in found}, source.missing) == ({"T", "missing"}, {})


def test_topic_that_nobody_may_read_gives_no_message() -> None:
    brokers = Brokers()
    brokers.perm = PERM_WRITE
    run, source = Play(brokers), make_source("T")

    assert run(pop.receive(source, count_max=2, invisible_ms=1, wait_ms=700)) == []
    assert sum(run.slept_ms) == 700


@pytest.mark.parametrize("is_over", [False, True])
def test_what_a_pop_finds_for_a_receive_that_is_cancelled_is_given_back(
    run: Callable[[Operation[Any]], Any], monkeypatch: pytest.MonkeyPatch, *, is_over: bool
) -> None:
    (message, *_) = receive_of_both(Play(Brokers()), make_source("T"))
    source, has_come, is_returned = make_source("T"), Event(), Event()
    returned: list[MessageExt] = []

    def find_places(_: PopSource) -> Operation[Any]:
        yield from ()
        return [(source.subscriptions["T"], message.queue)]

    def pop_one(*_: Any) -> Operation[list[MessageExt]]:
        yield from wait(has_come)
        return [message]

    def give_back(_: PopSource, messages: Sequence[MessageExt]) -> Operation[None]:
        yield from ()
        returned.extend(messages)
        is_returned.set()

    def cancel_then(task: Task) -> Operation[None]:
        yield from wait(has_come)
        yield from cancel(task)

    def operation() -> Operation[None]:
        receiving = yield from spawn(
            pop.receive(source, count_max=1, invisible_ms=1, wait_ms=60_000), name="receive"
        )
        yield from sleep(0)
        if is_over:
            # It is cancelled once the pop has ended, and before it has the messages.
            yield from spawn(cancel_then(receiving), name="cancel")
            yield from sleep(0)
        else:
            yield from cancel(receiving)
        has_come.set()
        yield from wait(is_returned, timeout_ms=2_000)

    monkeypatch.setattr(pop, "_find_places", find_places)
    monkeypatch.setattr(pop, "_pop", pop_one)
    monkeypatch.setattr(pop, "give_back", give_back)
    run(operation())
    assert returned == [message]


class Failing(Play):
    """Fails once, where the loop first waits; its consumer leaves then."""

    def __init__(self, brokers: Brokers, subscriber: Subscriber, *, calls: bool) -> None:
        super().__init__(brokers)
        self._subscriber = subscriber
        self._calls = calls

    def carry_out(self, effect: Any) -> Any:
        if isinstance(effect, Spawn) and effect.name == "calls of the listener":
            if not self._calls:
                effect.operation.close()
                return PlayedTask(effect.name)
        elif isinstance(effect, Wait) and self._subscriber.counters.delivered:
            self._subscriber.member.leave(self.now_ms)
            raise LookupError("a mistake")
        return super().carry_out(effect)


@pytest.mark.parametrize("is_done", [False, True])
def test_loop_that_failed_goes_on_with_the_messages_in_hand(*, is_done: bool) -> None:
    brokers = Brokers()
    subscriber = make_idle_subscriber("GID", balance="messages", consume_thread_count=1)
    add_subscription(subscriber, make_subscription(subscriber, "T", "*"))
    serve, run = pop_loop.push_loop(subscriber), Failing(brokers, subscriber, calls=is_done)
    with pytest.raises(LookupError):
        run(serve())
    asked = len(run.requests)
    run(serve())

    codes = [each.code for _, each in run.requests[asked:]]
    end = RequestCode.ACK_MESSAGE if is_done else RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    assert codes.count(end) == subscriber.counters.pulled
    assert subscriber.counters.pulled > 0


class Mistaken(Play):
    """Fails at the first request of a code; its consumer leaves after five turns of the loop."""

    def __init__(self, brokers: Brokers, subscriber: Subscriber, code: RequestCode) -> None:
        super().__init__(brokers)
        self._code, self._subscriber = code, subscriber
        self._turn_count = self.left_ms = 0

    @property
    def count(self) -> int:
        return sum(each.code == self._code for _, each in self.requests)

    def carry_out(self, effect: Any) -> Any:
        found = super().carry_out(effect)
        is_its = isinstance(effect, Invoke) and self.requests[-1][1].code == self._code
        if is_its and self.count == 1:
            raise LookupError("a mistake")
        if isinstance(effect, Wait):
            self.now_ms += 0 if found else effect.timeout_ms or 0
            self._turn_count += 1
            if self._turn_count == 5:
                self._subscriber.member.leave(self.now_ms)
                self.left_ms = self.now_ms
        return found


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    ],
)
def test_step_that_fails_by_a_mistake_holds_up_neither_the_next_one_nor_the_end(
    code: RequestCode,
) -> None:
    def listen(messages: list[MessageExt], context: ConsumeContext) -> None:
        if code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            context.retry(*messages)

    subscriber = make_idle_subscriber("GID", balance="messages", consume_thread_count=1)
    subscriber.listener = listen
    add_subscription(subscriber, make_subscription(subscriber, "T", "*"))
    run = Mistaken(Brokers(), subscriber, code)
    run(pop_loop.push_loop(subscriber)())

    assert run.count > 1
    assert run.now_ms - run.left_ms < subscriber.config.drain_timeout_ms
