"""Writes snapshots of a cluster's groups as three Parquet tables; each adds rows.

`topics` has a row for each group, topic and broker. `members` has a row for each connection, so an
id of two processes appears twice. `queues` has a row for each group and queue. All tables have
`snapshotTimestamp`, which is equal for all rows of a snapshot. Retry topics are in `queues` only.
Broadcasting groups are not in `topics`, because their members divide no queues.
Tests: test_snapshot.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparrowmq.doctor import GroupSnapshot, diagnose
from sparrowmq.doctor.group_view import GroupView, examine

_TIMESTAMP = pa.timestamp("ms", tz="UTC")

SCHEMAS: dict[str, pa.Schema] = {
    "topics": pa.schema(
        {
            "snapshotTimestamp": _TIMESTAMP,
            "consumerGroup": pa.string(),
            "topic": pa.string(),
            "brokerName": pa.string(),
            "queueCount": pa.int32(),
            "messagesPerSecond": pa.float64(),
        }
    ),
    "members": pa.schema(
        {
            "snapshotTimestamp": _TIMESTAMP,
            "consumerGroup": pa.string(),
            "clientId": pa.string(),
            "address": pa.string(),
            "language": pa.string(),
            "version": pa.int32(),
            "subscriptions": pa.list_(pa.string()),
        }
    ),
    "queues": pa.schema(
        {
            "snapshotTimestamp": _TIMESTAMP,
            "consumerGroup": pa.string(),
            "topic": pa.string(),
            "brokerName": pa.string(),
            "queueId": pa.int32(),
            "brokerOffset": pa.int64(),
            "consumerOffset": pa.int64(),
            "lag": pa.int64(),
            "owners": pa.list_(pa.string()),
            "isDisputed": pa.bool_(),
            "rules": pa.list_(pa.string()),
            "members": pa.int32(),
            "idleMembers": pa.int32(),
            "strategy": pa.string(),
            "isByMessage": pa.bool_(),
            "inFlight": pa.int64(),
        }
    ),
}


def tables_of(snapshots: Sequence[GroupSnapshot], *, timestamp_ms: int) -> dict[str, pa.Table]:
    """Return the tables of one snapshot of these groups, by name; a table may be empty."""
    views = [examine(snapshot) for snapshot in snapshots]
    makers = {"topics": _topic_rows, "members": _member_rows, "queues": _queue_rows}
    tables = {}
    for name, make_rows in makers.items():
        rows = [(timestamp_ms, *row) for view in views for row in make_rows(view)]
        schema = SCHEMAS[name]
        columns: Iterable[Any] = zip(*rows, strict=True) if rows else [()] * len(schema)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        tables[name] = pa.Table.from_arrays(arrays, schema=schema)
    return tables


def claim_timestamp(directory: Path, timestamp_ms: int) -> int:
    """Return the first timestamp from this one on that no other snapshot here has, or will have.

    Two snapshots of one timestamp would be one for readers, and their files have one name.

    Raises: OSError if the directory cannot be written.
    """
    place = directory / "members"
    place.mkdir(parents=True, exist_ok=True)
    while not _claim(place, timestamp_ms):
        timestamp_ms += 1
    return timestamp_ms


def write_tables(tables: dict[str, pa.Table], directory: Path, *, timestamp_ms: int) -> None:
    """Add one file to each table's directory; each file appears whole or not at all.

    `topics` comes last: readers take its newest rows for the newest snapshot, which is whole then.

    Args:
        timestamp_ms: a time from `claim_timestamp`, whose claim ends with the file of `members`.

    Raises: OSError if the directory cannot be written.
    """
    for name in ("members", "queues", "topics"):
        place = directory / name
        place.mkdir(parents=True, exist_ok=True)
        fresh = _fresh(place, timestamp_ms)
        with fresh.open("wb") as file:
            # Arrow would take the name of a place with a colon for a URL.
            pq.write_table(tables[name], file)
        fresh.replace(place / f"{timestamp_ms}.parquet")


def _claim(place: Path, timestamp_ms: int) -> bool:
    """Claim a timestamp for this process; return whether it was free."""
    fresh = _fresh(place, timestamp_ms)
    try:
        fresh.open("xb").close()
    except FileExistsError:
        return False
    # Only now: the process that had claimed it may have written its file in between.
    if not (place / f"{timestamp_ms}.parquet").exists():
        return True
    fresh.unlink()
    return False


def _fresh(place: Path, timestamp_ms: int) -> Path:
    # Readers skip names that begin with a dot.
    return place / f".{timestamp_ms}.parquet"


def _topic_rows(view: GroupView) -> Iterator[tuple[Any, ...]]:
    snapshot = view.snapshot
    if not snapshot.divides_queues:
        return
    for topic in snapshot.user_topics:
        counts: dict[str, int] = {}
        rates: dict[str, float] = {}
        for queue in topic.subscribe_queues:
            counts[queue.broker_name] = counts.get(queue.broker_name, 0) + 1
            if queue in view.rates:
                produced = max(0.0, view.rates[queue].produced_per_s)
                rates[queue.broker_name] = rates.get(queue.broker_name, 0.0) + produced
        for broker, count in counts.items():
            yield snapshot.group, topic.topic, broker, count, rates.get(broker)


def _member_rows(view: GroupView) -> Iterator[tuple[Any, ...]]:
    for connection in view.ownership.connections:
        report = view.snapshot.find_report(connection.client_id)
        topics = sorted(report.topics) if report else None
        yield (
            view.snapshot.group,
            *connection[:2],
            connection.language,
            connection.version,
            topics,
        )


def _queue_rows(view: GroupView) -> Iterator[tuple[Any, ...]]:
    findings = diagnose(view.snapshot)
    connections = view.ownership.connections
    is_by_message = view.ownership.is_by_message
    busy = {c for each in view.queues.values() for c in each.owners}
    idle = 0 if is_by_message else sum(c not in busy for c in connections)
    for queue, each in view.queues.items():
        at = each.progress
        rules = {f.rule for f in findings if queue in f.unowned or queue in f.double}
        yield (
            view.snapshot.group,
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            at.max_offset if at else None,
            at.committed_offset if at else None,
            each.lag,
            each.owner_ids,
            queue in view.ownership.disputed,
            sorted(rules),
            len(connections),
            idle,
            view.snapshot.strategy,
            is_by_message,
            at.in_flight if at else None,
        )
