"""Where a queue begins, and what becomes of a lock that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

import pytest

from hostile import record
from sparrowmq.client.config import ConsumerConfig
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.operations.handover import (
    IN_HAND_MEMBERS_MAX,
    LOCK_WAIT_MS,
    UNLOCK_RETRY_MS,
    UNLOCK_TIMES_MAX,
    acquire,
    ask_members,
    regain,
    renew_locks,
    unlock,
)
from sparrowmq.client.operations.member_loop import store_offset
from sparrowmq.client.route_cache import route_from
from sparrowmq.client.subscriber import BegunAtEnd, RebalanceCallbacks, Subscriber
from sparrowmq.errors import ConnectFailed, ConnectionLost, InvokeTimeout, SparrowError
from sparrowmq.membership.actions import Acquire, AskMembers, Regain, RenewLocks, Stored, Unlock
from sparrowmq.membership.group_offset import KnownOffset
from sparrowmq.membership.queue_history import QueueHistory
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import (
    BrokerData,
    ConsumerRunningInfo,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ProcessQueueInfo,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteAnswer,
    decode_body,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to

OLD, ADDED = (MessageQueue("T", "b", n) for n in range(2))
MAX_OFFSET = 77
HANDOVER_MS = 11_000
LATE_MS = 2 * HANDOVER_MS


class BrokerCondition:
    """In the place of the member and its queues: what they are told.

    The member goes on without a lock that is refused.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.history = QueueHistory(HANDOVER_MS)
        self.history.note("T", [OLD], cid_all=["me", "other"], now_ms=0)
        self.history.note("T", [OLD, ADDED], cid_all=["me", "other"], now_ms=HANDOVER_MS)

    def find_queue(self, *_: object) -> BrokerCondition:
        return self

    def finished_offset(self, _: MessageQueue) -> int:
        return 9

    def newest_message(self, _: MessageQueue) -> None:
        return None

    def __getattr__(self, name: str) -> Callable[..., bool]:
        def note(*_: object, **told: Any) -> bool:
            self.events.append((name, told))
            return name == "lock_refused"

        return note


@pytest.fixture
def subscriber() -> Subscriber:
    """A member that saw one queue at first, and a second later."""
    made = Subscriber(
        config=ConsumerConfig(group="GID_h", client_id="me"),
        name_servers=NameServers(("127.0.0.1:1",)),
        subscriptions={},
        listener=lambda *_: None,
        callbacks=RebalanceCallbacks(),
        report=lambda _: None,
    )
    route = TopicRouteAnswer(
        broker_datas=[BrokerData(broker_name="b", broker_addrs={0: "10.0.0.1:1"})],
        queue_datas=[QueueData(broker_name="b", read_queue_nums=2, write_queue_nums=2, perm=6)],
    )
    made.routes.update(route_from("T", route, now_ms=0))
    made.member = BrokerCondition()  # type: ignore[assignment]
    return made


def broker(*, is_locked: bool = False) -> Callable[[str, RemotingCommand], RemotingCommand]:
    """A broker with no committed offset."""

    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.LOCK_BATCH_MQ:
            held = [] if is_locked else [OLD, ADDED]
            return response_to(
                request, body=encode_body(LockBatchResponseBody(lock_ok_mq_set=held))
            )
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            return response_to(request, ResponseCode.QUERY_NOT_FOUND)
        assert request.code == RequestCode.GET_MAX_OFFSET
        return response_to(request, ext_fields={"offset": str(MAX_OFFSET)})

    return answer


@pytest.mark.parametrize("stands_in", [None, False, True])
def test_request_for_a_lock_waits_at_the_broker_which_says_whether_we_stand_in(
    subscriber: Subscriber, play: Any, stands_in: bool | None
) -> None:
    asked: list[str | None] = []

    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        asked.append((request.ext_fields or {}).get("sparrowmqWaitMs"))
        stood_in = None if stands_in is None else [OLD][: int(stands_in)]
        return response_to(
            request, body=encode_body(LockBatchResponseBody(sparrowmq_stood_in=stood_in))
        )

    run = play(answer)
    run(acquire(subscriber, Acquire(OLD, 1, wants_lock=True)))
    run(regain(subscriber, Regain(OLD, 1, wants_lock=True, newest=None)))

    events = subscriber.member.events  # type: ignore[attr-defined]
    assert [told["stands_in"] for _, told in events] == [stands_in] * 2
    # Who has the queue in hand is not to be held up.
    assert asked == [str(LOCK_WAIT_MS), "0"]
    assert run.waits_ms[0] - run.waits_ms[1] == LOCK_WAIT_MS


@pytest.mark.parametrize("is_in_hand", [False, True])
def test_lock_counts_from_the_sending_of_its_request(
    subscriber: Subscriber, play: Any, is_in_hand: bool
) -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        run.now_ms += 700
        return broker()(address, request)

    run = play(answer)
    begun_ms = run.now_ms
    operation = (
        regain(subscriber, Regain(OLD, 1, wants_lock=True, newest=None))
        if is_in_hand
        else acquire(subscriber, Acquire(OLD, 1, wants_lock=True))
    )

    run(operation)

    ((_, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert told["lock_sent_ms"] == begun_ms


@pytest.mark.parametrize(("queue", "offset"), [(OLD, MAX_OFFSET), (ADDED, 0)])
def test_queue_that_was_added_while_we_consumed_begins_at_its_first_message(
    subscriber: Subscriber, play: Any, queue: MessageQueue, offset: int
) -> None:
    notices: list[Any] = []
    subscriber.report = notices.append
    play(broker())(acquire(subscriber, Acquire(queue, 1, wants_lock=True)))

    ((name, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert name == "acquired"
    assert ([BegunAtEnd(queue, offset)] if offset else []) == notices
    assert (told["offset"], told["is_committed"]) == (offset, False)
    assert told["lock_sent_ms"] is not None


def test_start_is_not_looked_for_while_the_lock_is_refused(
    subscriber: Subscriber, play: Any
) -> None:
    played = play(broker(is_locked=True))
    played(acquire(subscriber, Acquire(OLD, 1, wants_lock=True)))

    assert [request.code for _, request in played.requests] == [RequestCode.LOCK_BATCH_MQ]
    ((name, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert (name, told["is_owner_listed"]) == ("lock_refused", True)


@pytest.mark.parametrize(
    ("error", "event"), [(ConnectFailed, "acquired"), (InvokeTimeout, "acquire_failed")]
)
def test_lock_is_done_without_only_where_no_master_can_hold_it(
    subscriber: Subscriber, play: Any, error: type[Exception], event: str
) -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.LOCK_BATCH_MQ:
            raise error("away", address=address)  # type: ignore[call-arg]
        return broker()(address, request)

    play(answer)(acquire(subscriber, Acquire(OLD, 1, wants_lock=True)))

    ((name, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert event == name
    assert told.get("lock_sent_ms") is None


@pytest.mark.parametrize("is_locked", [False, True])
def test_lock_and_start_of_an_owner_that_left_are_asked_for_at_once(
    subscriber: Subscriber, play: Any, is_locked: bool
) -> None:
    subscriber.member.history.note("T", [OLD, ADDED], cid_all=["me"], now_ms=LATE_MS)
    played = play(broker(is_locked=is_locked))
    played(acquire(subscriber, Acquire(OLD, 1, wants_lock=True)))

    assert [request.code for _, request in played.requests[:2]] == [
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.QUERY_CONSUMER_OFFSET,
    ]
    events = subscriber.member.events  # type: ignore[attr-defined]
    names = ["lock_refused", "acquired"] if is_locked else ["acquired"]
    assert names == [name for name, _ in events]
    assert (events[-1][1]["offset"], not events[-1][1]["lock_sent_ms"]) == (MAX_OFFSET, is_locked)


def test_added_queue_begins_at_its_end_where_the_user_wants_it_as_in_rocketmq(
    subscriber: Subscriber, play: Any
) -> None:
    subscriber.config = replace(subscriber.config, added_queues_from_first=False)

    play(broker())(acquire(subscriber, Acquire(ADDED, 1, wants_lock=True)))

    ((_, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert told["offset"] == MAX_OFFSET


def test_queue_that_comes_back_begins_at_the_commit_where_the_user_commits_by_hand(
    subscriber: Subscriber, play: Any
) -> None:
    subscriber.config = replace(subscriber.config, auto_commit=False)

    played = play(with_offset(4))
    played(acquire(subscriber, Acquire(OLD, 1, wants_lock=True, newest=NEWEST)))

    ((_, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert (told["offset"], told["has_newest"]) == (4, False)
    # Whether the broker has the messages behind it makes no difference.
    assert RequestCode.PULL_MESSAGE not in [request.code for _, request in played.requests]


@pytest.mark.parametrize(
    ("auto_commit", "offset", "found"), [(True, 4, 4), (False, 4, None), (False, 10, 10)]
)
def test_offset_behind_what_was_finished_is_no_reset_where_the_user_commits_by_hand(
    subscriber: Subscriber, play: Any, auto_commit: bool, offset: int, found: int | None
) -> None:
    subscriber.config = replace(subscriber.config, auto_commit=auto_commit)

    play(with_offset(offset))(regain(subscriber, Regain(OLD, 1, wants_lock=False, newest=None)))

    ((_, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert told["found"] == found


def member_info(*queues: MessageQueue) -> bytes:
    return encode_body(ConsumerRunningInfo(mq_table=dict.fromkeys(queues, ProcessQueueInfo())))


def ask(subscriber: Subscriber, play: Any, bodies: dict[str, bytes]) -> Any:
    """Ask the members that have an answer; return what the member is told they have in hand."""

    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        assert request.code == RequestCode.GET_CONSUMER_RUNNING_INFO
        body = bodies.get((request.ext_fields or {})["clientId"])
        if body is None:
            raise InvokeTimeout("silent", address="b")
        if not body:
            return response_to(request, ResponseCode.SYSTEM_ERROR, remark="not online")
        return response_to(request, body=body)

    play(answer)(ask_members(subscriber, AskMembers((OLD,))))
    ((name, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert name == "members_asked"
    return told["in_hand"]


def test_other_members_tell_what_they_have_in_hand(subscriber: Subscriber, play: Any) -> None:
    subscriber.member.history.note("T", [OLD, ADDED], cid_all=["me", "c1", "c2"], now_ms=LATE_MS)

    in_hand = ask(subscriber, play, {"c1": member_info(ADDED), "c2": member_info()})

    assert frozenset([ADDED]) == in_hand


def test_members_of_all_topics_are_asked(subscriber: Subscriber, play: Any) -> None:
    history, elsewhere = subscriber.member.history, MessageQueue("U", "b", 0)
    history.note("U", [elsewhere], cid_all=["me", "c1"], now_ms=LATE_MS)
    asked: set[str] = set()

    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        asked.add((request.ext_fields or {})["clientId"])
        return response_to(request, body=member_info())

    play(answer)(ask_members(subscriber, AskMembers((OLD, elsewhere))))

    assert asked == {"other", "c1"}


def test_queue_may_be_in_hand_of_a_member_that_is_not_connected_now(
    subscriber: Subscriber, play: Any
) -> None:
    subscriber.member.history.note("T", [OLD, ADDED], cid_all=["me", "c1", "c2"], now_ms=LATE_MS)

    assert frozenset([OLD]) == ask(subscriber, play, {"c1": member_info(), "c2": b""})


@pytest.mark.parametrize(
    "cid_all",
    [["me", "c1", "c2"], ["me", *(f"c{n}" for n in range(IN_HAND_MEMBERS_MAX + 1))]],
)
def test_nothing_is_known_while_a_member_does_not_tell_or_there_are_many(
    subscriber: Subscriber, play: Any, cid_all: list[str]
) -> None:
    subscriber.member.history.note("T", [OLD, ADDED], cid_all=cid_all, now_ms=LATE_MS)

    assert ask(subscriber, play, {"c1": member_info()}) is None


@pytest.mark.parametrize(
    ("errors", "times"),
    [
        ([], 1),
        # Nothing was sent, so nothing can arrive late.
        ([ConnectFailed], 1),
        ([InvokeTimeout], 2),
        ([ConnectionLost, ConnectFailed, InvokeTimeout], 4),
        ([InvokeTimeout] * 99, UNLOCK_TIMES_MAX),
    ],
)
def test_lock_is_given_back_until_that_is_answered(
    subscriber: Subscriber, play: Any, errors: list[type[SparrowError]], times: int
) -> None:
    left = iter(errors)

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        assert request.code == RequestCode.UNLOCK_BATCH_MQ
        error = next(left, None)
        if error is not None:
            raise error("away", address=address)  # type: ignore[call-arg]
        return response_to(request)

    played = play(answer)
    played(unlock(subscriber, Unlock(OLD, 1)))

    assert times == len(played.requests)
    assert set(played.slept_ms) <= {UNLOCK_RETRY_MS}
    assert [name for name, _ in subscriber.member.events] == ["unlocked"]  # type: ignore[attr-defined]


HERE, ELSEWHERE = "10.0.0.1:1", "10.0.0.9:1"
NEWEST = Stored(8, 800, 8_000)


def with_offset(
    offset: int, *, held: bool = True, stored: bytes = b""
) -> Callable[[str, RemotingCommand], Any]:
    """A broker that has an offset of the group, and the message of a record or none."""

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            return response_to(request, ext_fields={"offset": str(offset)})
        if request.code == RequestCode.PULL_MESSAGE:
            end = "10" if stored else "8"
            fields = {"nextBeginOffset": end, "minOffset": "0", "maxOffset": end}
            fields["suggestWhichBrokerId"] = "0"
            code = ResponseCode.SUCCESS if stored else ResponseCode.PULL_NOT_FOUND
            return response_to(request, code, ext_fields=fields, body=stored)
        if not held:
            raise ConnectFailed("away", address=address)
        return broker()(address, request)

    return answer


@pytest.mark.parametrize(
    ("source", "offset", "found"),
    [(HERE, 4, 4), (ELSEWHERE, 4, None), (ELSEWHERE, 10, 10)],
    ids=["a reset", "a new master", "another member"],
)
def test_lower_offset_at_a_new_master_is_an_old_one_and_no_reset(
    subscriber: Subscriber, play: Any, source: str, offset: int, found: int | None
) -> None:
    subscriber.known_offsets.note(OLD, KnownOffset(source, 9, None))

    play(with_offset(offset))(regain(subscriber, Regain(OLD, 1, wants_lock=False, newest=None)))

    ((name, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert (name, told["found"]) == ("regained", found)


def test_old_offset_stays_an_old_one_until_the_queue_is_committed_at_the_new_master(
    subscriber: Subscriber, play: Any
) -> None:
    subscriber.known_offsets.note(OLD, KnownOffset(ELSEWHERE, 9, None))

    # The first answer is worth nothing where the queue needs its lock.
    for held in (False, True):
        played = play(with_offset(4, held=held))
        played(regain(subscriber, Regain(OLD, 1, wants_lock=True, newest=None)))
    committed = play(lambda _, request: response_to(request))
    committed(store_offset(subscriber, OLD, 9, address=HERE))
    play(with_offset(4))(regain(subscriber, Regain(OLD, 1, wants_lock=True, newest=None)))

    events = subscriber.member.events  # type: ignore[attr-defined]
    assert [told["found"] for name, told in events if name == "regained"] == [None, None, 4]


@pytest.mark.parametrize(
    ("known", "offset", "start"),
    [
        (KnownOffset(HERE, 9, None), 4, (4, True)),
        (KnownOffset(ELSEWHERE, 9, None), 4, (9, False)),
        (KnownOffset(ELSEWHERE, 9, None), 10, (10, True)),
        # It never got the last messages; others have taken their places.
        (KnownOffset(ELSEWHERE, 9, NEWEST), 4, (4, True)),
    ],
    ids=["a reset", "a new master", "another member", "a new master without the newest"],
)
def test_queue_taken_anew_begins_nowhere_behind_what_the_member_knows(
    subscriber: Subscriber, play: Any, known: KnownOffset, offset: int, start: tuple[int, bool]
) -> None:
    subscriber.known_offsets.note(OLD, known)

    play(with_offset(offset))(acquire(subscriber, Acquire(OLD, 1, wants_lock=True)))

    ((name, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert (name, told["offset"], told["is_committed"]) == ("acquired", *start)


@pytest.mark.parametrize(
    ("source", "newest", "start", "is_in_memory", "found"),
    [
        (HERE, None, "first", False, 0),
        (HERE, None, "last", True, 0),
        (HERE, None, "last", False, None),
        (HERE, NEWEST, "first", False, None),
        (ELSEWHERE, None, "first", False, None),
    ],
)
def test_who_has_pulled_nothing_begins_anew_where_the_broker_forgot_the_offset(
    subscriber: Subscriber,
    play: Any,
    source: str,
    newest: Stored | None,
    start: Literal["first", "last"],
    is_in_memory: bool,
    found: int | None,
) -> None:
    subscriber.config = replace(subscriber.config, start=start)
    subscriber.known_offsets.note(OLD, KnownOffset(source, 9, None))

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        is_asked = request.code == RequestCode.QUERY_CONSUMER_OFFSET
        if is_asked and is_in_memory and "setZeroIfNotFound" not in (request.ext_fields or ()):
            return response_to(request, ext_fields={"offset": "0"})
        if is_asked:
            return response_to(request, ResponseCode.QUERY_NOT_FOUND)
        return with_offset(0)(address, request)  # type: ignore[no-any-return]

    play(answer)(regain(subscriber, Regain(OLD, 1, wants_lock=False, newest=newest)))

    ((name, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert (name, told["found"]) == ("regained", found)


@pytest.mark.parametrize("is_in_hand", [False, True])
@pytest.mark.parametrize(
    ("place", "has_newest"),
    [
        (NEWEST, True),
        (NEWEST._replace(position=900), False),
        (NEWEST._replace(timestamp_ms=9_000), False),
        # The first of those that the broker still has.
        (NEWEST._replace(offset=9), False),
        (None, False),
    ],
)
def test_newest_message_is_the_one_that_stands_where_it_stood(
    subscriber: Subscriber, play: Any, place: Stored | None, has_newest: bool, is_in_hand: bool
) -> None:
    stored = b""
    if place is not None:
        offset, position, timestamp_ms = place
        stored = record("T", 0, offset, position=position, store_timestamp_ms=timestamp_ms)
    operation = (
        regain(subscriber, Regain(OLD, 1, wants_lock=False, newest=NEWEST))
        if is_in_hand
        else acquire(subscriber, Acquire(OLD, 1, wants_lock=False, newest=NEWEST))
    )

    # Of a former master: what is found now is old, unless messages are gone.
    subscriber.known_offsets.note(OLD, KnownOffset(ELSEWHERE, 9, None))
    run = play(with_offset(4, stored=stored))
    run(operation)

    ((_, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert told["has_newest"] == has_newest
    if is_in_hand:
        assert told["found"] == (None if has_newest else 4)
    (pulled,) = [each for _, each in run.requests if each.code == RequestCode.PULL_MESSAGE]
    assert (pulled.ext_fields or {})["queueOffset"] == str(NEWEST.offset)


def move(subscriber: Subscriber, *hosts: str) -> tuple[MessageQueue, ...]:
    """Make the topic a static one, whose queues these brokers serve by turns."""
    names = sorted(set(hosts))
    route = TopicRouteAnswer(
        broker_datas=[BrokerData(broker_name=n, broker_addrs={0: f"{n}:1"}) for n in names],
        topic_queue_mapping_by_broker={
            name: TopicQueueMappingInfo(
                bname=name,
                total_queues=len(hosts),
                curr_id_map={n: n for n, host in enumerate(hosts) if host == name},
            )
            for name in names
        },
    )
    made = route_from("T", route, now_ms=0)
    subscriber.routes.update(made)
    return made.subscribe_queues


def test_locks_of_a_static_topic_are_renewed_at_the_brokers_that_serve_its_queues(
    subscriber: Subscriber, play: Any
) -> None:
    queues = move(subscriber, "x", "y", "x")
    asked: dict[str, list[MessageQueue]] = {}

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        asked[address] = decode_body(LockBatchRequestBody, request.body).mq_set
        if address == "y:1":
            raise ConnectFailed("down", address=address)
        held = LockBatchResponseBody(lock_ok_mq_set=asked[address])
        return response_to(request, body=encode_body(held))

    play(answer)(renew_locks(subscriber, RenewLocks("__syslo__global__", queues, 0)))

    assert asked == {"x:1": [queues[0], queues[2]], "y:1": [queues[1]]}
    told = [told["held"] for _, told in subscriber.member.events]  # type: ignore[attr-defined]
    assert told == [{queues[0], queues[2]}, None]


@pytest.mark.parametrize("what", ["acquire", "regain"])
def test_broker_that_no_longer_serves_a_queue_makes_the_member_ask_for_routes(
    subscriber: Subscriber, play: Any, what: str
) -> None:
    queue, *_ = move(subscriber, "x")

    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        return response_to(request, ResponseCode.NOT_LEADER_FOR_QUEUE)

    asked: dict[str, Any] = {
        "acquire": acquire(subscriber, Acquire(queue, 1, wants_lock=False)),
        "regain": regain(subscriber, Regain(queue, 1, wants_lock=False, newest=None)),
    }
    play(answer)(asked[what])

    names = [name for name, _ in subscriber.member.events]  # type: ignore[attr-defined]
    assert names == ["queue_moved", "acquire_failed"]


def test_start_that_was_found_is_not_taken_back_by_a_new_master(
    subscriber: Subscriber, play: Any
) -> None:
    play(with_offset(9))(acquire(subscriber, Acquire(OLD, 1, wants_lock=False)))
    route = TopicRouteAnswer(
        broker_datas=[BrokerData(broker_name="b", broker_addrs={0: ELSEWHERE})],
        queue_datas=[QueueData(broker_name="b", read_queue_nums=2, write_queue_nums=2, perm=6)],
    )
    subscriber.routes.update(route_from("T", route, now_ms=1))
    play(with_offset(4))(acquire(subscriber, Acquire(OLD, 2, wants_lock=False)))

    events = subscriber.member.events  # type: ignore[attr-defined]
    assert [told["offset"] for _, told in events] == [9, 9]


@pytest.mark.parametrize(("topic", "offset"), [("T", 50), ("%RETRY%GID_h", 0)])
def test_first_message_in_memory_is_no_commit_where_the_user_chose_a_time(
    subscriber: Subscriber, play: Any, topic: str, offset: int
) -> None:
    """But messages that failed before the first commit are in the retry topic from there on."""

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            # Brokers from 5.0 on tell "none" to who asks for it.
            if (request.ext_fields or {}).get("setZeroIfNotFound") == "false":
                return response_to(request, ResponseCode.QUERY_NOT_FOUND)
            return response_to(request, ext_fields={"offset": "0"})
        assert request.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return response_to(request, ext_fields={"offset": "50"})

    subscriber.config = replace(subscriber.config, start=datetime(2026, 1, 1, tzinfo=UTC))
    queue = OLD._replace(topic=topic)
    play(answer)(acquire(subscriber, Acquire(queue, 1, wants_lock=False)))

    ((_, told),) = subscriber.member.events  # type: ignore[attr-defined]
    assert told["offset"] == offset
