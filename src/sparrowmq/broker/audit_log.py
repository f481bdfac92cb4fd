"""The changes of progress that no member made: who changed what, when, from where to where.

A reset behind running members, an offset set by hand, messages sent again, a topic changed or
deleted: afterwards only this log shows why a group is where it is. The newest records are kept;
`config/auditLog.json` has them over restarts. A commit counts if the client says that an operator
asked for it, or if it lowers an offset; programs that commit for a group from outside, as Spark's
source does, only raise offsets. A send counts if it comes from the command line, or goes to the
retry topic of a group and comes from no member.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from heapq import nsmallest

from msgspec import Struct, structs

from sparrowmq.protocol.bodies import SENT_AGAIN, AuditRecord, OffsetMove
from sparrowmq.protocol.signatures import ACCESS_KEY
from sparrowmq.protocol.wire_names import prepare_types, wire_names
from sparrowmq.serving.connections import Fact
from sparrowmq.serving.requests import Request

# The records that are kept, of all groups and again of all topics; and the queues of one record.
RECORDS_MAX, QUEUES_MAX = 1_000, 256
# An operator's change of many queues or messages is many requests; they join one record while the
# pause between them is shorter.
AUDIT_JOIN_MS = 10_000
_JOINED_KINDS = ("set", "sent", SENT_AGAIN)


class AuditTable(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The file's content: the records, the oldest first."""

    records: list[AuditRecord] = []


prepare_types([AuditTable])


class AuditLog:
    """The newest records, the oldest first."""

    def __init__(self) -> None:
        # Many topics made at once drop no record of a group.
        self._of_groups: deque[AuditRecord] = deque(maxlen=RECORDS_MAX)
        self._of_topics: deque[AuditRecord] = deque(maxlen=RECORDS_MAX)
        self.is_changed = False

    def load(self, table: AuditTable) -> None:
        """Load the records of a file."""
        for record in table.records:
            self._records_of(record.group).append(record)

    def table(self) -> AuditTable:
        """Return a copy of the records."""
        records = [*self._of_groups, *self._of_topics]
        return AuditTable(records=sorted(records, key=_time_of))

    def find(self, group: str, topics: Collection[str]) -> list[AuditRecord]:
        """Return the records of a group and of its topics, the newest first."""
        found = [record for record in self._of_groups if record.group == group]
        found += [record for record in self._of_topics if record.topic in topics]
        return sorted(found, key=_time_of)[::-1]

    def _records_of(self, group: str) -> deque[AuditRecord]:
        return self._of_groups if group else self._of_topics

    def note(
        self,
        request: Request,
        kind: str,
        group: str = "",
        *,
        topic: str = "",
        moves: Mapping[int, tuple[int | None, int | None]] | None = None,
        detail: str = "",
    ) -> list[Fact]:
        """Note a change.

        Args:
            kind: as in `AuditRecord`.
            group: the group, "" for a change of a topic.
            moves: the offsets before and after by queue id; None stands for no commit.
            detail: what changed, if it is not an offset.

        Returns: the line for the log; none if the change joins the newest record of the group, or
            of the topic.
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
                for queue_id, (before, after) in nsmallest(QUEUES_MAX, (moves or {}).items())
            ],
        )
        records = self._records_of(group)
        # Others join none: a topic that many groups have consumed is deleted in one go.
        for place in reversed(range(len(records) if kind in _JOINED_KINDS else 0)):
            last = records[place]
            if last.group == group and (group or last.topic == topic):
                if _is_continued(last, record):
                    records[place] = _join(last, record)
                    return []
                break
        records.append(record)
        return [Fact(_describe(record))]


def _time_of(record: AuditRecord) -> int:
    return record.timestamp_ms


def _is_continued(last: AuditRecord, record: AuditRecord) -> bool:
    def actor(each: AuditRecord) -> tuple[str, ...]:
        host = each.address.rpartition(":")[0]
        return each.kind, each.topic, each.account, host, each.detail

    is_near = record.timestamp_ms - last.timestamp_ms <= AUDIT_JOIN_MS
    if record.kind == SENT_AGAIN and not _continues(last.moves, record.moves):
        return False
    return is_near and actor(last) == actor(record)


def _continues(before: Sequence[OffsetMove], after: Sequence[OffsetMove]) -> bool:
    """Return whether dead letters follow those of the record before, without a gap."""
    ends = {(move.queue_id, move.after) for move in before}
    return bool(before) == bool(after) and all((m.queue_id, m.before) in ends for m in after)


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
    steps = [(move.after or 0) - (move.before or 0) for move in moves]
    forward, back = sum(max(0, step) for step in steps), sum(max(0, -step) for step in steps)
    if not record.group:
        text = f"topic {record.topic!r}: {record.kind} by {who}"
        return f"{text}; {record.detail}" if record.detail else text
    text = f"group {record.group!r}: {record.kind} by {who}"
    if record.topic:
        text += f", topic {record.topic}"
    if moves and record.kind != SENT_AGAIN:
        text += f", {len(moves)} queues: {back:,} messages back, {forward:,} forward"
    return f"{text}; {record.detail}" if record.detail else text
