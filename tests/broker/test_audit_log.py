"""The records of changes of groups' progress: joined, bounded. Live: tests/cli."""

from __future__ import annotations

from sparrowmq.broker.audit_log import AUDIT_JOIN_MS, RECORDS_MAX, AuditLog
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
    newest, *_, oldest = log.of_group("G")
    assert (oldest.count, [(m.queue_id, m.before, m.after) for m in oldest.moves]) == (
        3,
        [(0, 9, 0), (1, 9, 0), (2, 9, 0)],
    )
    assert (newest.count, newest.timestamp_ms) == (1, late_ms)


def test_the_log_is_bounded() -> None:
    log = AuditLog()

    for number in range(RECORDS_MAX + 5):
        log.note(request(at_ms=number), "reset", f"G{number}")

    assert len(log.table().records) == RECORDS_MAX
    assert log.of_group("G4") == []
    assert len(log.of_group("G5")) == 1
