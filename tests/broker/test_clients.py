from __future__ import annotations

import json
from itertools import count, pairwise
from typing import Any

import pytest

from processor_time import measuring, takes_less_than
from sparrowmq.broker import lock_waits, queue_lock_file
from sparrowmq.broker.config import DuplicateClientIdPolicy
from sparrowmq.broker.consumer_groups import HEARTBEAT_EXPIRY_MS, NOTICE_PAUSE_MS_MAX
from sparrowmq.broker.journal_records import LockChange, decode_changes
from sparrowmq.broker.lock_waits import LOCK_WAIT_MS_MAX
from sparrowmq.broker.processors import clients
from sparrowmq.broker.queue_lock_file import LockTable
from sparrowmq.broker.queue_lock_table import QueueLockTable
from sparrowmq.broker.state import BrokerRefusal
from sparrowmq.coordination.member_marker import (
    EXPIRY_FIELD,
    MARKED_EXPIRY_MS,
    QUEUE_LEASE_BROKER_MS,
    QUEUE_LEASE_CLIENT_MS,
    mark_version,
)
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import (
    ConsumerListBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    OwnersListBody,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    decode_body,
)
from sparrowmq.protocol.codes import MQ_VERSION, RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.serving.connections import Close, Fact, Reply
from sparrowmq.serving.requests import Request

QUEUE = MessageQueue("T", "broker-a", 0)
NUMBERS = count(10_000)


def try_beat(
    rig: Any,
    connection: Any,
    client_id: str,
    *topics: str,
    version: int = 1,
    model: str = "CLUSTERING",
) -> Any:
    """Send a heartbeat; returns its answer."""
    subscriptions = [
        {"topic": topic, "subString": "*", "subVersion": version, "tagsSet": [], "codeSet": []}
        for topic in topics or ("T",)
    ]
    consumer = {
        "groupName": "GID_c",
        "messageModel": model,
        "subscriptionDataSet": subscriptions,
    }
    body = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
    return rig.call(connection, RequestCode.HEART_BEAT, None, json.dumps(body).encode())


def beat(rig: Any, connection: Any, client_id: str, *topics: str, version: int = 1) -> list[Any]:
    """Send a heartbeat that must be taken; returns what came beside its answer."""
    before = len(rig.outputs)
    reply = try_beat(rig, connection, client_id, *topics, version=version)
    assert reply.code == 0, reply.remark
    outputs: list[Any] = rig.outputs[before + 1 :]
    return outputs


def client_ids(rig: Any) -> list[str]:
    reply = rig.call(
        rig.connect(), RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "GID_c"}
    )
    assert reply.code == 0, reply.remark
    return decode_body(ConsumerListBody, reply.body).consumer_id_list


def lock_body(client_id: str, *queue_ids: int) -> bytes:
    queues = [{"topic": "T", "brokerName": "broker-a", "queueId": n} for n in queue_ids]
    body = {"clientId": client_id, "consumerGroup": "GID_c", "mqSet": queues}
    return json.dumps(body).encode()


def join(rig: Any, client_id: str) -> Any:
    """Return the connection of a new member."""
    connection = rig.connect()
    beat(rig, connection, client_id)
    return connection


def lock(rig: Any, connection: Any, client_id: str, *queue_ids: int) -> list[int]:
    body = lock_body(client_id, *queue_ids)
    reply = rig.call(connection, RequestCode.LOCK_BATCH_MQ, None, body)
    return [q.queue_id for q in decode_body(LockBatchResponseBody, reply.body).lock_ok_mq_set]


def test_new_member_is_told_to_every_member_itself_included(rig: Any) -> None:
    first, second = rig.connect(), rig.connect()

    alone = rig.pushes(beat(rig, first, "a"))
    again = rig.pushes(beat(rig, first, "a"))
    both = rig.pushes(beat(rig, second, "b"))

    assert alone == [(first, "GID_c")]
    assert again == []
    assert both == [(first, "GID_c"), (second, "GID_c")]
    assert client_ids(rig) == ["a", "b"]


def test_many_joins_cost_few_notices_and_every_member_hears_of_the_last_one(rig: Any) -> None:
    members, joins = [], 300
    notices: list[tuple[Any, int]] = []
    for number in range(joins):
        rig.now_ms += 2
        members.append(rig.connect())
        notices += [(at, number) for at, _ in rig.pushes(beat(rig, members[-1], f"m-{number}"))]
        if number % 50 == 49:
            notices += [(at, number) for at, _ in rig.pushes(tick(rig))]
    rig.now_ms += NOTICE_PAUSE_MS_MAX
    notices += [(at, joins) for at, _ in rig.pushes(tick(rig))]

    assert {at for at, number in notices if number == joins} == set(members)
    # Each join as a notice to every member would be 45,150.
    assert len(notices) < 5_000
    assert sorted(client_ids(rig)) == sorted(f"m-{number}" for number in range(joins))


def tick(rig: Any) -> list[Any]:
    outputs: list[Any] = rig.broker.tick(now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
    return outputs


def owners_claimed(rig: Any) -> dict[str, list[int]]:
    fields = {"consumerGroup": "GID_c", "sparrowmqOwners": "true"}
    reply = rig.call(rig.connect(), RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)
    owners = decode_body(OwnersListBody, reply.body).sparrowmq_owners or {}
    return {client_id: [q.queue_id for q in queues] for client_id, queues in owners.items()}


def test_owners_of_queues_are_told_to_who_asks_and_to_nobody_else(rig: Any) -> None:
    first, second = rig.connect(), rig.connect()
    beat(rig, first, "a")
    beat(rig, second, "b")
    lock(rig, first, "a", 3, 1)
    lock(rig, second, "b", 2)

    plain = rig.call(
        rig.connect(), RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "GID_c"}
    )

    assert owners_claimed(rig) == {"a": [1, 3], "b": [2]}
    assert json.loads(plain.body) == {"consumerIdList": ["a", "b"]}


def test_stand_in_of_one_that_is_gone_counts_as_owner(rig: Any) -> None:
    first, second = rig.connect(), rig.connect()
    beat(rig, first, "a")
    beat(rig, second, "b")
    lock(rig, first, "a", 0, 1)

    while_listed = (lock(rig, second, "b", 0) == [], owners_claimed(rig))
    rig.broker.connection_closed(first, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
    lock(rig, second, "b", 0)

    assert while_listed == (True, {"a": [0, 1]})
    assert owners_claimed(rig) == {"b": [0], "a": [1]}


def test_heartbeat_of_a_client_in_cpp_makes_a_member(rig: Any) -> None:
    # As jsoncpp writes it: numbers for enumerations, texts for numbers of 64 bits.
    body = (
        b'{"clientID":"10.0.0.1@cpp","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
        b'"groupName":"GID_c","messageModel":1,"subscriptionDataSet":[{"codeSet":["2598919"],'
        b'"subString":"*","subVersion":"1700000000000","tagsSet":["TagA"],"topic":"T"}]}],'
        b'"producerDataSet":[{"groupName":"GID_p"}]}'
    )

    reply = rig.call(member := rig.connect(), RequestCode.HEART_BEAT, None, body)
    listed = rig.call(
        member, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "GID_c"}
    ).body

    assert reply.code == 0, reply.remark
    assert decode_body(ConsumerListBody, listed).consumer_id_list == ["10.0.0.1@cpp"]


def test_heartbeat_makes_the_groups_retry_topic(rig: Any) -> None:
    beat(rig, rig.connect(), "a")

    topic = rig.broker.state.topics.find("%RETRY%GID_c")
    assert (topic.read_queue_nums, topic.perm) == (1, 6)


def test_shared_client_id_is_listed_twice_and_warned_of_once(rig: Any) -> None:
    first, second = rig.connect(), rig.connect()
    beat(rig, first, "172.17.0.1@9")

    first_beat, second_beat = (beat(rig, second, "172.17.0.1@9") for _ in range(2))
    facts, later = (
        [output for output in outputs if isinstance(output, Fact) and output.warning]
        for outputs in (first_beat, second_beat)
    )

    assert client_ids(rig) == ["172.17.0.1@9", "172.17.0.1@9"]
    assert later == []
    (fact,) = facts
    assert first.address in fact.text
    assert second.address in fact.text
    assert rig.broker.state.counters.duplicate_client_ids == 1


def test_shared_client_id_can_be_refused_until_the_other_is_gone(make_rig: Any) -> None:
    rig = make_rig(duplicate_client_id=DuplicateClientIdPolicy.REJECT)
    first, second = rig.connect(), rig.connect()
    beat(rig, first, "a")
    before = len(rig.outputs)

    replies = [try_beat(rig, second, "a") for _ in range(2)]
    facts = [output for output in rig.outputs[before:] if isinstance(output, Fact)]
    listed = client_ids(rig)
    try_beat(rig, first, "a")
    rig.broker.connection_closed(first, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)

    assert [reply.code for reply in replies] == [ResponseCode.SYSTEM_ERROR] * 2
    assert all(first.address in reply.remark for reply in replies)
    assert listed == ["a"]
    assert len(facts) == 1
    assert rig.broker.state.counters.duplicate_client_ids == 1
    assert try_beat(rig, second, "a").code == ResponseCode.SUCCESS


def test_members_of_a_broadcasting_group_may_share_an_id(make_rig: Any) -> None:
    rig = make_rig(duplicate_client_id=DuplicateClientIdPolicy.REJECT)

    replies = [try_beat(rig, rig.connect(), "a", model="BROADCASTING") for _ in range(2)]

    assert [reply.code for reply in replies] == [ResponseCode.SUCCESS] * 2
    assert rig.broker.state.counters.duplicate_client_ids == 0


def test_unregistering_tells_the_rest_even_if_nothing_was_removed(rig: Any) -> None:
    first, second = rig.connect(), rig.connect()
    beat(rig, first, "a")
    beat(rig, second, "b")
    fields = {"clientID": "b", "consumerGroup": "GID_c", "producerGroup": "GID_p"}
    before = len(rig.outputs)

    rig.call(second, RequestCode.UNREGISTER_CLIENT, fields)
    rig.call(second, RequestCode.UNREGISTER_CLIENT, fields)

    assert rig.pushes(rig.outputs[before:]) == [(first, "GID_c")] * 2
    assert client_ids(rig) == ["a"]


def test_closed_connection_leaves_and_the_rest_is_told(rig: Any) -> None:
    first, second = rig.connect(), rig.connect()
    beat(rig, first, "a")
    beat(rig, second, "b")

    outputs = rig.broker.connection_closed(second, now_ms=rig.now_ms, timestamp_ms=0)

    assert rig.pushes(outputs) == [(first, "GID_c")]
    assert client_ids(rig) == ["a"]


def test_member_whose_heartbeats_stop_is_closed_and_the_rest_is_told(rig: Any) -> None:
    first, second = rig.connect(), rig.connect()
    beat(rig, first, "a")
    rig.advance(60_000)
    beat(rig, second, "b")
    rig.outputs.clear()

    rig.advance(HEARTBEAT_EXPIRY_MS - 60_000 + 10_000)

    assert Close(first, "its heartbeats stopped") in rig.outputs
    assert rig.pushes(rig.outputs) == [(second, "GID_c")]
    assert client_ids(rig) == ["b"]


def test_marked_member_is_told_its_expiry_and_forgotten_then(rig: Any) -> None:
    frozen, java = rig.connect(), rig.connect()
    body = b'{"clientID":"a","consumerDataSet":[{"groupName":"GID_c","subscriptionDataSet":[]}]}'
    request = RemotingCommand(
        code=RequestCode.HEART_BEAT, body=body, version=mark_version(MQ_VERSION)
    )
    rig.handle(frozen, request)
    (reply,) = (o.command for o in rig.outputs if isinstance(o, Reply))
    beat(rig, java, "b")
    lock(rig, frozen, "a", 0)
    rig.outputs.clear()

    rig.advance(MARKED_EXPIRY_MS - 1_000)
    kept = client_ids(rig)
    rig.outputs.clear()
    rig.advance(2_000)

    assert {EXPIRY_FIELD: str(MARKED_EXPIRY_MS)} == reply.ext_fields
    assert kept == ["a", "b"]
    assert Close(frozen, "its heartbeats stopped") in rig.outputs
    assert rig.pushes(rig.outputs) == [(java, "GID_c")]
    assert client_ids(rig) == ["b"]
    # The lock of a member that holds itself to a shorter lease ends with that.
    assert lock(rig, java, "b", 0) == [0]


def test_group_may_wish_no_notifications(rig: Any) -> None:
    connection = rig.connect()
    settings = b'{"groupName":"GID_c","notifyConsumerIdsChangedEnable":false}'
    rig.call(connection, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, settings)

    assert rig.pushes(beat(rig, connection, "a")) == []


def test_list_of_an_empty_group_is_an_error(rig: Any) -> None:
    fields = {"consumerGroup": "none"}
    reply = rig.call(rig.connect(), RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)

    assert (reply.code, reply.remark) == (1, "no consumer for this group, none")


@pytest.mark.parametrize("body", [None, b"", b"{", b"[]", b"\xff\xfe", b"{}"])
def test_malformed_heartbeat_is_answered_with_an_error(rig: Any, body: bytes | None) -> None:
    reply = rig.call(rig.connect(), RequestCode.HEART_BEAT, None, body)

    assert reply.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("client_id", "group", "subscriptions", "words"),
    [
        ("a", "G", [{"topic": f"T{n}"} for n in range(257)], "more than 256 topics"),
        ("a", "G", [{"topic": "T", "subString": "a" * 4_097}], "is too long"),
        ("a", "G", [{"topic": "T", "codeSet": list(range(4_097))}], "is too long"),
        ("a" * 513, "G", [], "client id"),
        ("a", "bad group", [], "illegal"),
        ("a", "G" * 256, [], "illegal"),
    ],
)
def test_heartbeat_is_bounded(
    rig: Any, client_id: str, group: str, subscriptions: list[Any], words: str
) -> None:
    consumer = {"groupName": group, "subscriptionDataSet": subscriptions}
    body = json.dumps({"clientID": client_id, "consumerDataSet": [consumer]}).encode()

    reply = rig.call(rig.connect(), RequestCode.HEART_BEAT, None, body)

    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert words in reply.remark
    assert len(rig.broker.state.consumers) == 0


@pytest.mark.parametrize("length", [120, 121])
def test_group_that_consumes_has_room_for_its_retry_topic_or_is_refused(
    rig: Any, length: int
) -> None:
    group, is_taken = "G" * length, length == 120
    rig.send(rig.connect())
    body = json.dumps({"clientID": "a", "consumerDataSet": [{"groupName": group}]}).encode()
    settings = json.dumps({"groupName": group}).encode()
    offset = {"consumerGroup": group, "topic": "T", "queueId": "0", "commitOffset": "1"}
    back = {"offset": "0", "group": group, "delayLevel": "0"}

    replies = [
        rig.call(rig.connect(), RequestCode.HEART_BEAT, None, body),
        rig.call(rig.connect(), RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, settings),
        rig.call(rig.connect(), RequestCode.UPDATE_CONSUMER_OFFSET, offset),
        rig.call(rig.connect(), RequestCode.CONSUMER_SEND_MSG_BACK, back),
    ]

    assert [reply.code == 0 for reply in replies] == [is_taken] * 4
    assert is_taken == (rig.broker.state.topics.find(f"%RETRY%{group}") is not None)
    assert is_taken == (rig.broker.state.groups.find(group) is not None)
    assert (0 if is_taken else 2) == rig.broker.state.refusals.counts[BrokerRefusal.GROUP_NAME]


def test_producers_of_longer_groups_are_known(rig: Any) -> None:
    body = {"clientID": "a", "producerDataSet": [{"groupName": "G" * 255}]}

    assert (
        rig.call(rig.connect(), RequestCode.HEART_BEAT, None, json.dumps(body).encode()).code == 0
    )


def test_group_of_a_file_that_is_too_long_for_a_retry_topic_sends_nothing_back(rig: Any) -> None:
    group = SubscriptionGroupConfig(group_name="G" * 121)
    rig.broker.state.groups.load(
        SubscriptionGroupTable(subscription_group_table={group.group_name: group})
    )
    rig.send(rig.connect())
    fields = {"offset": "0", "group": group.group_name, "delayLevel": "0"}

    reply = rig.call(rig.connect(), RequestCode.CONSUMER_SEND_MSG_BACK, fields)

    assert "too long for a retry topic" in reply.remark


def test_lock_is_refused_while_another_client_holds_it(rig: Any) -> None:
    first, second = join(rig, "a"), join(rig, "b")

    assert lock(rig, first, "a", 0, 1) == [0, 1]
    assert lock(rig, second, "b", 0, 2) == [2]
    assert lock(rig, first, "a", 0) == [0]


def test_unlocked_queue_is_free_and_others_locks_stay(rig: Any) -> None:
    connection = join(rig, "a")
    join(rig, "b")
    lock(rig, connection, "a", 0)
    queues = [{"topic": "T", "brokerName": "broker-a", "queueId": 0}]
    for client_id, expected in (("b", []), ("a", [0])):
        body = {"clientId": client_id, "consumerGroup": "GID_c", "mqSet": queues}
        reply = rig.call(connection, RequestCode.UNLOCK_BATCH_MQ, None, json.dumps(body).encode())
        assert reply.code == 0

        assert lock(rig, connection, "b", 0) == expected


def commit(rig: Any, connection: Any, offset: int, **fields: str) -> int:
    """Commit an offset; return the group's offset after the answer, which must be a success."""
    header = {"consumerGroup": "GID_c", "topic": "T", "queueId": "0", "commitOffset": str(offset)}
    reply = rig.call(connection, RequestCode.UPDATE_CONSUMER_OFFSET, {**header, **fields})
    assert (reply.code, reply.remark) == (0, None)
    return int(rig.broker.state.offsets.find("GID_c", "T", 0))


def ask_to_wait(rig: Any, connection: Any, client_id: str, wait_ms: int = 500) -> int:
    """Ask for the lock of queue 0 and be ready to wait; return the request's number."""
    body, number = lock_body(client_id, 0), next(NUMBERS)
    fields = {"sparrowmqWaitMs": str(wait_ms)}
    code = RequestCode.LOCK_BATCH_MQ
    rig.handle(connection, RemotingCommand(code=code, ext_fields=fields, body=body, opaque=number))
    return number


def lock_answer(outputs: list[Any], number: int) -> LockBatchResponseBody | None:
    """Return the answer to a request; None while there is none."""
    for output in outputs:
        if isinstance(output, Reply) and output.command.opaque == number:
            return decode_body(LockBatchResponseBody, output.command.body)
    return None


def granted(outputs: list[Any], number: int) -> list[int] | None:
    """Return the queues that the answer to a request names; None while there is no answer."""
    body = lock_answer(outputs, number)
    return None if body is None else [queue.queue_id for queue in body.lock_ok_mq_set]


def stands_in(outputs: list[Any], number: int) -> bool | None:
    """Return whether a request made its member a stand-in; None while there is no answer."""
    body = lock_answer(outputs, number)
    return None if body is None else bool(body.sparrowmq_stood_in)


def unlock(rig: Any, connection: Any, client_id: str) -> None:
    code, body = RequestCode.UNLOCK_BATCH_MQ, lock_body(client_id, 0)
    rig.handle(connection, RemotingCommand(code=code, body=body))


def test_request_that_may_wait_gets_the_lock_with_the_unlock_the_first_one_first(rig: Any) -> None:
    owner, first, second = (join(rig, client_id) for client_id in "abc")
    lock(rig, owner, "a", 0)
    numbers = [ask_to_wait(rig, first, "b"), ask_to_wait(rig, second, "c")]
    waiting = [granted(rig.outputs, number) for number in numbers]

    unlock(rig, owner, "a")
    after_first = [granted(rig.outputs, number) for number in numbers]
    unlock(rig, first, "b")

    assert waiting == [None, None]
    assert after_first == [[0], None]
    assert granted(rig.outputs, numbers[1]) == [0]
    assert len(rig.broker.state.lock_waits) == 0


def test_wait_for_a_lock_ends_with_its_connection(rig: Any) -> None:
    owner, first, second = (join(rig, client_id) for client_id in "abc")
    lock(rig, owner, "a", 0)
    numbers = [ask_to_wait(rig, first, "b"), ask_to_wait(rig, second, "c")]

    rig.broker.connection_closed(first, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
    left = len(rig.broker.state.lock_waits)
    unlock(rig, owner, "a")

    assert left == 1
    assert [granted(rig.outputs, number) for number in numbers] == [None, [0]]


def test_wait_for_a_lock_ends_at_its_deadline_and_with_the_holders_lease(rig: Any) -> None:
    owner, other = join(rig, "a"), join(rig, "b")
    lock(rig, owner, "a", 0)
    number = ask_to_wait(rig, other, "b", 99_999)
    rig.now_ms += LOCK_WAIT_MS_MAX - 1
    early = granted(tick(rig), number)
    rig.now_ms += 1
    refused = granted(tick(rig), number)
    rig.now_ms += QUEUE_LEASE_BROKER_MS - LOCK_WAIT_MS_MAX
    again = ask_to_wait(rig, other, "b")
    rig.now_ms += 1
    rig.outputs += tick(rig)
    rig.work()

    assert (early, refused) == (None, [])
    assert granted(rig.outputs, again) == [0]


@pytest.mark.parametrize("is_connected_anew", [False, True])
def test_a_member_that_gives_a_queue_up_gets_no_lock_for_its_waiting_request(
    rig: Any, is_connected_anew: bool
) -> None:
    owner, other = join(rig, "a"), join(rig, "b")
    lock(rig, owner, "a", 0)
    number = ask_to_wait(rig, other, "b")

    unlock(rig, join(rig, "b") if is_connected_anew else other, "b")
    unlock(rig, owner, "a")

    assert granted(rig.outputs, number) == []
    assert rig.broker.state.locks.find_owner("GID_c", QUEUE, now_ms=rig.now_ms) is None


def test_one_member_at_a_time_stands_in_for_a_holder_that_is_gone(rig: Any) -> None:
    holder, first, second = (join(rig, client_id) for client_id in "abc")
    lock(rig, holder, "a", 0)
    numbers = [ask_to_wait(rig, first, "b"), ask_to_wait(rig, second, "c")]
    while_listed = [stands_in(rig.outputs, number) for number in numbers]

    rig.outputs += rig.broker.connection_closed(
        holder, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms
    )
    when_gone = [stands_in(rig.outputs, number) for number in numbers]
    unlock(rig, first, "b")

    assert while_listed == [None, None]
    assert when_gone == [True, None]
    assert stands_in(rig.outputs, numbers[1])
    # The holder may be alive behind its broken connection.
    assert rig.broker.state.locks.find_owner("GID_c", QUEUE, now_ms=rig.now_ms) == "a"


def test_no_more_requests_wait_than_the_bound(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_waits, "LOCK_WAITS_MAX", 1)
    owner, other = join(rig, "a"), join(rig, "b")
    lock(rig, owner, "a", 0)

    numbers = [ask_to_wait(rig, other, "b"), ask_to_wait(rig, other, "b")]

    assert [granted(rig.outputs, number) for number in numbers] == [None, []]


def test_late_commit_of_a_member_does_not_set_another_members_queue_back(rig: Any) -> None:
    holder, late = join(rig, "c0"), join(rig, "c1")
    lock(rig, holder, "c0", 0)
    commit(rig, holder, 9)

    # Such a member may be back on a connection that has sent no heartbeat yet.
    after = [commit(rig, late, 5), commit(rig, rig.connect(), 5, sparrowmqClientId="c1")]
    # This one sets nothing back.
    after.append(commit(rig, late, 9))

    assert after == [9, 9, 9]
    assert rig.broker.state.refusals.counts[BrokerRefusal.LATE_COMMIT] == 2
    warnings = [fact.text for fact in rig.outputs if isinstance(fact, Fact) and fact.warning]
    assert warnings == [
        "ignored offset 5 of group 'GID_c' in MessageQueue [topic=T, brokerName=broker-a, "
        "queueId=0], which is at 9: 'c1' commits late, 'c0' has the queue"
    ]
    assert commit(rig, late, 10) == 10


def test_offset_is_lowered_by_who_may(rig: Any) -> None:
    """The lock's holder seeks, a tool resets; Java's concurrent members hold no locks."""
    holder, other = join(rig, "c0"), join(rig, "c1")
    lock(rig, holder, "c0", 0)
    commit(rig, holder, 9)

    after = [commit(rig, holder, 8), commit(rig, rig.connect(), 7)]
    rig.call(holder, RequestCode.UNLOCK_BATCH_MQ, None, lock_body("c0", 0))
    after.append(commit(rig, other, 6))
    lock(rig, holder, "c0", 0)
    rig.broker.connection_closed(holder, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
    after.append(commit(rig, other, 5))
    # Back on a connection that has sent no heartbeat yet.
    after.append(commit(rig, rig.connect(), 4, sparrowmqClientId="c1"))

    assert after == [8, 7, 6, 5, 4]
    # What the tool did is an operator's doing.
    moves = [move for each in rig.broker.state.audit.table().records for move in each.moves]
    assert [(move.before, move.after) for move in moves] == [(8, 7)]


@pytest.mark.parametrize("unregisters", [False, True])
@pytest.mark.parametrize("joins", ["ab", "ba"])
def test_locks_of_a_member_that_has_left_last_for_the_clients_own_lease(
    rig: Any, joins: str, *, unregisters: bool
) -> None:
    member_of = {name: join(rig, name) for name in joins}
    first, second = member_of["a"], member_of["b"]
    lock(rig, first, "a", 0)
    if unregisters:
        fields = {"clientID": "a", "consumerGroup": "GID_c"}
        rig.call(first, RequestCode.UNREGISTER_CLIENT, fields)
    rig.broker.connection_closed(first, now_ms=rig.now_ms, timestamp_ms=0)

    rig.now_ms += QUEUE_LEASE_CLIENT_MS
    early = lock(rig, second, "b", 0)
    rig.now_ms += 1
    late = lock(rig, second, "b", 0)

    assert (early, late) == ([], [0])


def test_locks_stay_if_another_connection_of_the_client_is_there(rig: Any) -> None:
    first, second, other = rig.connect(), rig.connect(), join(rig, "b")
    beat(rig, first, "a")
    beat(rig, second, "a")
    lock(rig, first, "a", 0)
    rig.broker.connection_closed(first, now_ms=rig.now_ms, timestamp_ms=0)

    rig.now_ms += QUEUE_LEASE_BROKER_MS

    assert lock(rig, other, "b", 0) == []


def test_only_a_change_of_locks_is_written(rig: Any) -> None:
    connection, journal = join(rig, "a"), rig.broker.state.journal
    steps: list[int] = []

    def note() -> None:
        steps.append(journal.begun)

    note()
    for queue_id in (0, 0, 1):
        lock(rig, connection, "a", queue_id)
        note()
    rig.broker.connection_closed(connection, now_ms=rig.now_ms, timestamp_ms=0)
    for _ in range(2):
        lock(rig, rig.connect(), "a", 0)
        note()

    # Taken, renewed, another taken, renewed after it was cut by the closed connection, renewed.
    assert [after - before for before, after in pairwise(steps)] == [1, 0, 1, 1, 0]


def test_nobody_is_told_of_a_lock_before_it_is_written(rig: Any) -> None:
    join(rig, "a")
    rig.holds_work = True
    command = RemotingCommand(code=RequestCode.LOCK_BATCH_MQ, body=lock_body("a", 0))
    for _ in range(2):
        # The second asks again since the answer is late.
        assert rig.replies(rig.handle(rig.connect(), command)) == []

    before = len(rig.outputs)
    rig.work()
    assert len(rig.replies(rig.outputs[before:])) == 2


def test_lock_that_could_not_be_written_is_refused_until_it_is(rig: Any) -> None:
    join(rig, "a")
    rig.holds_work = True
    command = RemotingCommand(code=RequestCode.LOCK_BATCH_MQ, body=lock_body("a", 0))
    codes: list[list[int]] = []
    for error in (OSError("no space left"), None):
        before = len(rig.outputs)
        rig.handle(rig.connect(), command)
        rig.work(error)
        codes.append([reply.code for reply in rig.replies(rig.outputs[before:])])

    assert codes == [[ResponseCode.SYSTEM_ERROR], [ResponseCode.SUCCESS]]
    assert len(rig.replies(rig.handle(rig.connect(), command))) == 1


def test_locks_outlive_a_restart_in_the_journal_and_in_their_file(rig: Any) -> None:
    join(rig, "a")
    rig.holds_work = True
    command = RemotingCommand(code=RequestCode.LOCK_BATCH_MQ, body=lock_body("a", 0))
    rig.handle(rig.connect(), command)
    journal = rig.broker.journal_work(now_ms=rig.now_ms)
    rig.broker.ask_last_save()
    files = dict(rig.broker.save_work(now_ms=rig.now_ms).encode())
    table = decode_body(LockTable, files["queueLock.json"])
    from_journal, from_file = QueueLockTable(), QueueLockTable()

    (change,) = (c for c in decode_changes(journal.encode()) if isinstance(c, LockChange))
    from_journal.restore([change], now_ms=5)
    queue_lock_file.restore(from_file, table, now_ms=5)

    for restored in (from_journal, from_file):
        assert restored.find_owner("GID_c", QUEUE, now_ms=5) == "a"
        assert restored.find_owner("GID_c", QUEUE, now_ms=6 + QUEUE_LEASE_BROKER_MS) is None


def test_new_locks_are_for_listed_members_and_renewals_for_all_that_hold_one(rig: Any) -> None:
    member, stranger = join(rig, "a"), rig.connect()
    rig.outputs.clear()
    held, refused = lock(rig, member, "a", 0), lock(rig, stranger, "s", 0, 1, 2)
    facts = [output for output in rig.outputs if isinstance(output, Fact)]
    rig.broker.connection_closed(member, now_ms=rig.now_ms, timestamp_ms=0)

    assert (held, refused) == ([0], [])
    # Nobody lists the member now, as after a restart of the broker.
    assert lock(rig, rig.connect(), "a", 0, 1) == [0]
    assert rig.broker.state.refusals.counts[BrokerRefusal.LOCK] == 2
    (fact,) = facts
    assert "3 locks of client 's' for group 'GID_c', as the group does not list it" in fact.text
    assert stranger.address in fact.text


def test_a_lock_beside_many_of_another_costs_as_little(rig: Any) -> None:
    rig.create_topic("Wide", 14_000)
    locks = rig.broker.state.locks
    others = [MessageQueue("Wide", "broker-a", number) for number in range(14_000)]
    locks.restore([LockChange("GID_s", queue, "s", 60_000) for queue in others], now_ms=rig.now_ms)
    member = join(rig, "a")
    rig.holds_work = True

    def seconds(queue_id: int) -> float:
        """Return what a lock takes, with what is written of it."""
        command = RemotingCommand(code=RequestCode.LOCK_BATCH_MQ, body=lock_body("a", queue_id))
        with measuring() as taken:
            rig.handle(member, command)
            work = rig.broker.journal_work(now_ms=rig.now_ms)
            assert len(work.encode()) < 1_024
            rig.broker.journaled(work, None)
        return taken.seconds

    # 5 ms are usual; all locks were written for each.
    assert min(map(seconds, range(4))) < 0.05


def test_restored_locks_may_be_renewed_before_anybody_is_listed(rig: Any) -> None:
    locks = rig.broker.state.locks
    locks.restore([LockChange("GID_c", QUEUE, "a", 60_000)], now_ms=rig.now_ms)

    assert lock(rig, rig.connect(), "a", 0, 1) == [0]
    assert lock(rig, rig.connect(), "b", 0, 1) == []


@pytest.mark.parametrize(
    "queue",
    [
        {"topic": "Absent", "brokerName": "broker-a", "queueId": 0},
        {"topic": "T", "brokerName": "broker-b", "queueId": 0},
        {"topic": "T", "brokerName": "broker-a", "queueId": 4},
        {"topic": "T", "brokerName": "broker-a", "queueId": -1},
    ],
    ids=["topic", "broker", "beyond", "negative"],
)
def test_queues_that_there_are_not_get_no_lock(rig: Any, queue: dict[str, Any]) -> None:
    body = {"clientId": "a", "consumerGroup": "GID_c", "mqSet": [queue]}
    reply = rig.call(join(rig, "a"), RequestCode.LOCK_BATCH_MQ, None, json.dumps(body).encode())

    assert decode_body(LockBatchResponseBody, reply.body).lock_ok_mq_set == []
    assert len(rig.broker.state.locks) == 0


def test_too_many_locks_in_one_request_are_refused(rig: Any) -> None:
    queues = [{"topic": "T", "brokerName": "broker-a", "queueId": n} for n in range(1_025)]
    body = {"clientId": "a", "consumerGroup": "GID_c", "mqSet": queues}
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        reply = rig.call(rig.connect(), code, None, json.dumps(body).encode())

        assert reply.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("kind", "expression", "code", "words"),
    [
        ("TAG", "a > 5", 0, None),
        ("SQL92", "a > 5", 0, None),
        ("SQL92", "a >< 5", 23, "wrong at character 4, '<'"),
        ("JEXL", "a", 23, "a filter of type 'JEXL'; it must be TAG or SQL92"),
    ],
)
def test_what_cannot_be_filtered_by_is_refused(
    rig: Any, kind: str, expression: str, code: int, words: str | None
) -> None:
    subscription = {"topic": "T", "subString": expression, "expressionType": kind}
    body = {"clientId": "a", "group": "GID_c", "subscriptionData": subscription}

    reply = rig.call(
        rig.connect(), RequestCode.CHECK_CLIENT_CONFIG, None, json.dumps(body).encode()
    )

    assert code == reply.code
    assert words is None or words in reply.remark


def test_groups_of_one_client_are_bounded(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "GROUPS_PER_CLIENT_MAX", 2)
    groups = [{"groupName": name} for name in ("P", "Q", "R")]
    body = {"clientID": "a", "producerDataSet": groups[:1], "consumerDataSet": groups[1:]}

    reply = rig.call(rig.connect(), RequestCode.HEART_BEAT, None, json.dumps(body).encode())

    assert (reply.code, reply.remark) == (1, "too many groups")


def test_producer_groups_are_bounded(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "GROUPS_MAX", 2)
    producer = rig.connect()

    def produce(*groups: str) -> str | None:
        body = {"clientID": "a", "producerDataSet": [{"groupName": name} for name in groups]}
        reply = rig.call(producer, RequestCode.HEART_BEAT, None, json.dumps(body).encode())
        remark: str | None = reply.remark
        return remark

    assert [produce("P", "Q", "R"), produce("S")] == [None, "too many groups"]
    rig.broker.connection_closed(producer, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
    assert produce("S") is None


def test_requests_that_wait_for_one_lock_are_forgotten_in_linear_time(rig: Any) -> None:
    waits, peers = lock_waits.LockWaits(), [rig.connect(), rig.connect()]
    body = LockBatchRequestBody(consumer_group="G", client_id="a", mq_set=[QUEUE])
    for number in range(lock_waits.LOCK_WAITS_MAX):
        request = Request(RemotingCommand(code=1), peers[number % 2], 0, 0)
        assert waits.add(lock_waits.LockWait(request, body, 1_000, is_ours=True))
    with takes_less_than(0.02):
        waits.discard(peers[1])

    assert len(waits) == lock_waits.LOCK_WAITS_MAX // 2
