"""The changes of groups' progress that no member made: who moved which offsets, when, from where.

A reset behind running members, an offset set by hand, dead letters sent again: afterwards only
this log shows why a group is where it is. The newest records are kept; `config/auditLog.json` has
them over restarts. A commit counts if the client says that an operator asked for it, or if it
lowers an offset; programs that commit for a group from outside, as Spark's source does, only raise
offsets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from sparrowmq.protocol.bodies import AuditRecord, OffsetMove
from sparrowmq.protocol.signatures import ACCESS_KEY
from sparrowmq.protocol.wire_names import prepare_types, wire_names
from sparrowmq.serving.connections import Fact
from sparrowmq.serving.requests import Request

# The records that are kept, of all groups; and the queues that one record names.
RECORDS_MAX, QUEUES_MAX = 1_000, 256
# An operator's change of many queues or messages is many requests; they join one record while the
# pause between them is shorter.
AUDIT_JOIN_MS = 10_000


class AuditTable(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The file's content: the records, the oldest first."""

    records: list[AuditRecord] = []


prepare_types([AuditTable])


class AuditLog:
    """The newest records, the oldest first."""

    def __init__(self) -> None:
        self._records: deque[AuditRecord] = deque(maxlen=RECORDS_MAX)
        self.is_changed = False

    def load(self, table: AuditTable) -> None:
        """Load the records of a file."""
        self._records.extend(table.records)

    def table(self) -> AuditTable:
        """Return a copy of the records."""
        return AuditTable(records=list(self._records))

    def of_group(self, group: str) -> list[AuditRecord]:
        """Return a group's records, the newest first."""
        return [record for record in reversed(self._records) if record.group == group]

    def note(
        self,
        request: Request,
        kind: str,
        group: str,
        *,
        topic: str = "",
        moves: Mapping[int, tuple[int | None, int]] | None = None,
        detail: str = "",
    ) -> list[Fact]:
        """Note a change.

        Args:
            kind: reset, set, copied, sent again, settings, or deleted.
            moves: the offsets before and after by queue id; None before stands for no commit.
            detail: what changed, if it is not an offset.

        Returns: the line for the log; none if the change joins the group's newest record.
        """
        self.is_changed = True
        record = AuditRecord(
            timestamp_ms=request.timestamp_ms,
            since_timestamp_ms=request.timestamp_ms,
            kind=kind,
            group=group,
            topic=topic,
            account=(request.command.ext_fields or {}).get(ACCESS_KEY, ""),
            address=request.connection.address,
            detail=detail,
            moves=[
                OffsetMove(queue_id=queue_id, before=before, after=after)
                for queue_id, (before, after) in sorted((moves or {}).items())[:QUEUES_MAX]
            ],
        )
        for place in range(len(self._records) - 1, -1, -1):
            last = self._records[place]
            if last.group == group:
                if _is_continued(last, record):
                    self._records[place] = _join(last, record)
                    return []
                break
        self._records.append(record)
        return [Fact(_describe(record))]


def _is_continued(last: AuditRecord, record: AuditRecord) -> bool:
    def actor(each: AuditRecord) -> tuple[str, ...]:
        host = each.address.rpartition(":")[0]
        return each.kind, each.topic, each.account, host, each.detail

    is_near = record.timestamp_ms - last.timestamp_ms <= AUDIT_JOIN_MS
    return is_near and record.kind in ("set", "sent again") and actor(last) == actor(record)


def _join(last: AuditRecord, record: AuditRecord) -> AuditRecord:
    moves = {move.queue_id: move for move in last.moves}
    for move in record.moves:
        before = moves[move.queue_id].before if move.queue_id in moves else move.before
        moves[move.queue_id] = structs.replace(move, before=before)
    return structs.replace(
        record,
        since_timestamp_ms=last.since_timestamp_ms,
        count=last.count + 1,
        moves=[moves[queue_id] for queue_id in sorted(moves)][:QUEUES_MAX],
    )


def _describe(record: AuditRecord) -> str:
    who = f"{record.account} at {record.address}" if record.account else record.address
    moves: Sequence[OffsetMove] = record.moves
    forward = sum(max(0, move.after - (move.before or 0)) for move in moves)
    back = sum(max(0, (move.before or 0) - move.after) for move in moves)
    text = f"group {record.group!r}: {record.kind} by {who}"
    if record.topic:
        text += f", topic {record.topic}"
    if moves:
        text += f", {len(moves)} queues: {back:,} messages back, {forward:,} forward"
    return f"{text}; {record.detail}" if record.detail else text
