"""The records of changes of groups' progress: joined, bounded. Live: tests/cli."""

from __future__ import annotations

from typing import Any

import pytest

from sparrowmq.broker.audit_log import AUDIT_JOIN_MS, QUEUES_MAX, RECORDS_MAX, AuditLog
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.serving.connections import Connection
from sparrowmq.serving.requests import Request


def request(*, at_ms: int, port: int = 1, host: str = "10.0.0.1") -> Request:
    connection = Connection(port, f"{host}:{port}", b"\n\0\0\1\0\0\0\1")
    return Request(RemotingCommand(code=25), connection, at_ms, at_ms)


def test_the_requests_of_one_change_are_one_record() -> None:
    log = AuditLog()

    facts = [
        log.note(
            request(at_ms=number, port=number + 1), "set", "G", topic="T", moves={number: (9, 0)}
        )
        for number in range(3)
    ]
    facts.append(
        log.note(request(at_ms=50, host="10.0.0.2"), "set", "G", topic="T", moves={0: (0, 5)})
    )
    late_ms = 51 + AUDIT_JOIN_MS
    facts.append(
        log.note(request(at_ms=late_ms, host="10.0.0.2"), "set", "G", topic="T", moves={0: (5, 6)})
    )

    assert [len(each) for each in facts] == [1, 0, 0, 1, 1]
    newest, *_, oldest = log.find("G", ())
    assert (oldest.count, [(m.queue_id, m.before, m.after) for m in oldest.moves]) == (
        3,
        [(0, 9, 0), (1, 9, 0), (2, 9, 0)],
    )
    assert (newest.count, newest.timestamp_ms) == (1, late_ms)


def test_dead_letters_sent_again_join_only_their_neighbours() -> None:
    log = AuditLog()

    for offset in (3, 4, 7):
        log.note(request(at_ms=offset), "sent again", "G", moves={0: (offset, offset + 1)})

    found = [[(m.before, m.after) for m in record.moves] for record in log.find("G", ())]
    assert found == [[(7, 8)], [(3, 5)]]


def test_a_record_is_joined_while_the_pauses_are_short_and_names_so_many_queues() -> None:
    log = AuditLog()

    for number in range(QUEUES_MAX + 9):
        at_ms = number * AUDIT_JOIN_MS
        log.note(request(at_ms=at_ms), "set", "G", topic="T", moves={number: (9, 0)})

    (record,) = log.find("G", ())
    assert (record.count, len(record.moves)) == (QUEUES_MAX + 9, QUEUES_MAX)


def test_the_log_is_bounded() -> None:
    log = AuditLog()

    for number in range(RECORDS_MAX + 5):
        log.note(request(at_ms=number), "reset", f"G{number}")
        log.note(request(at_ms=number), "made", topic=f"T{number}")

    assert len(log.table().records) == 2 * RECORDS_MAX
    assert log.find("", ("T4",)) == []
    assert len(log.find("", ("T5",))) == 1
    assert log.find("G4", ()) == []
    assert len(log.find("G5", ())) == 1


def test_records_of_groups_and_of_topics_are_found_after_a_restart() -> None:
    log, loaded = AuditLog(), AuditLog()
    log.note(request(at_ms=1), "reset", "G")
    log.note(request(at_ms=2), "made", topic="T")

    loaded.load(log.table())

    found = loaded.find("G", ("T",))
    assert [each.kind for each in found] == ["made", "reset"]


def records(rig: Any) -> list[tuple[str, str, str, list[tuple[int, int | None, int | None]], str]]:
    """Return kind, group, topic, moves and detail of each record, the oldest first."""
    return [
        (
            each.kind,
            each.group,
            each.topic,
            [(m.queue_id, m.before, m.after) for m in each.moves],
            each.detail,
        )
        for each in rig.broker.state.audit.table().records
    ]


def call(rig: Any, code: RequestCode, fields: dict[str, str]) -> None:
    rig.timestamp_ms += 1
    reply = rig.call(rig.connect(), code, fields)
    assert reply is None or reply.code == ResponseCode.SUCCESS


def test_what_is_done_to_a_topic_is_noted_for_its_groups_too(rig: Any) -> None:
    topic = {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
    }
    call(rig, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
    call(rig, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
    call(rig, RequestCode.UPDATE_AND_CREATE_TOPIC, topic | {"writeQueueNums": "2"})
    for queue_id in ("0", "1"):
        rig.send(rig.connect(), "T", queue_id=int(queue_id))
        commit = {"consumerGroup": "G", "topic": "T", "queueId": queue_id, "commitOffset": "1"}
        call(rig, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    call(rig, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})

    assert records(rig) == [
        ("made", "", "T", [], ""),
        ("settings", "", "T", [], "write_queue_nums 4 → 2"),
        ("deleted", "G", "T", [(0, 1, None), (1, 1, None)], "the topic"),
        ("deleted", "", "T", [], ""),
    ]


def test_offsets_that_go_with_their_group_are_noted(rig: Any) -> None:
    rig.send(rig.connect(), "T")
    commit = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
    call(rig, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    fields = {"groupName": "G", "removeOffset": "true"}
    call(rig, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)

    assert records(rig)[1:] == [
        ("deleted", "G", "T", [(0, 1, None)], "the group's offsets"),
        ("deleted", "G", "", [], "with its offsets"),
    ]


@pytest.mark.parametrize("field", ["removeOffset", "cleanOffset"])
def test_deletion_of_a_group_that_is_not_there_is_not_noted(rig: Any, field: str) -> None:
    """Tools repeat a deletion at each broker of a cluster, and such records displaced others."""
    call(rig, RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "none", field: "true"})

    assert [record for record in records(rig) if record[0] == "deleted"] == []


def test_what_an_operator_sends_is_noted_and_what_a_producer_sends_is_not(rig: Any) -> None:
    for _ in range(3):
        rig.send(rig.connect(), "T", queue_id=1)
    for properties in ("", "", "DELAY\x013"):
        rig.send(rig.connect(), "T", queue_id=1, properties=properties, a="SPARROWMQ_CLI")

    assert records(rig)[1:] == [("sent", "", "T", [(1, 3, 5)], "")]
    assert [each.count for each in rig.broker.state.audit.table().records] == [1, 3]
