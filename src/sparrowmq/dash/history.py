"""Keeps the groups' owners, events, lag and rates in a bounded SQLite file.

The file has each queue's present owners and each change of owners. Both rows carry the owners
before, so that the oldest rows may be deleted at any time. The file also has the times in which the
server looked: a change in a gap between them does not count as a rebalance at the next look.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from sparrowmq.client.operations.overview import FlowRates
from sparrowmq.doctor.group_view import GroupView, Standing, is_watched
from sparrowmq.doctor.owner_history import At, OwnerChange, SeenEvent, list_seen
from sparrowmq.errors import ConfigError
from sparrowmq.model import MessageQueue

# The file in the page's directory.
FILE_NAME = "dash.sqlite"
# The shortest time between two stored samples of the lag.
SAMPLE_MS = 10_000
# The rows of each table; the oldest are deleted. All tables together take about 70 MB.
ROWS_MAX = 200_000
# The most events and changes of a group that a page reads.
SEEN_MAX = 5_000
# Charts of more than an hour have bars of three minutes or a multiple: of older rates the greatest
# of three minutes are kept.
_EACH_RATE_KEPT_MS, _RATE_MS = 3_600_000, 180_000
# The rows are counted once in so many looks.
_PRUNE_EVERY = 500
# A member's number gives its letter and colour; the number is reused this long after its last use.
_NUMBER_KEPT_MS = 3_600_000
# The history forgets a group that was not seen for so long.
_GROUP_KEPT_MS = 7 * 86_400_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS owner (cluster TEXT, grp TEXT, queue TEXT, owners TEXT, since_ms INTEGER,
  is_exact INTEGER, PRIMARY KEY (cluster, grp, queue)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seen (id INTEGER PRIMARY KEY, cluster TEXT, grp TEXT, at_ms INTEGER,
  is_change INTEGER, what TEXT);
CREATE INDEX IF NOT EXISTS seen_at ON seen (cluster, grp, at_ms);
CREATE TABLE IF NOT EXISTS watched (id INTEGER PRIMARY KEY, cluster TEXT, grp TEXT,
  from_ms INTEGER, until_ms INTEGER);
CREATE INDEX IF NOT EXISTS watched_at ON watched (cluster, grp, until_ms);
CREATE TABLE IF NOT EXISTS sample (id INTEGER PRIMARY KEY, cluster TEXT, grp TEXT, at_ms INTEGER,
  lag INTEGER, unowned INTEGER, doubled INTEGER, members INTEGER);
CREATE INDEX IF NOT EXISTS sample_at ON sample (cluster, grp, at_ms);
CREATE TABLE IF NOT EXISTS rate (id INTEGER PRIMARY KEY, cluster TEXT, name TEXT, is_topic INTEGER,
  at_ms INTEGER, in_per_s REAL, out_per_s REAL);
CREATE INDEX IF NOT EXISTS rate_at ON rate (cluster, name, is_topic, at_ms);
CREATE TABLE IF NOT EXISTS member (cluster TEXT, grp TEXT, client_id TEXT, number INTEGER,
  last_ms INTEGER, PRIMARY KEY (cluster, grp, client_id)) WITHOUT ROWID;
"""


class LagSample(NamedTuple):
    """A group's lag, queues in trouble and members at a time.

    The lag is None if it was unknown, as for BROADCASTING members.
    """

    at_ms: int
    lag: int | None
    unowned: int
    double: int
    members: int


class RateSample(NamedTuple):
    """The messages a second of a group or a topic at a time; a topic has none that go out."""

    at_ms: int
    in_per_s: float
    out_per_s: float


class History:
    """The history of the groups of one cluster.

    Args:
        path: the file; None keeps the history in memory.
        cluster: the name servers, which distinguish clusters in one file.

    Raises: ConfigError if the file cannot be written or is not an SQLite file.
    """

    def __init__(self, path: Path | None, cluster: str) -> None:
        self._cluster = cluster
        self._looks = 0
        self._thinned_ms = 0
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(":memory:" if path is None else path)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(_explain(path, error)) from None
        try:
            # A power cut may lose the last moments of a chart and nothing else.
            self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + _SCHEMA)
        except sqlite3.Error as error:
            self._db.close()
            raise ConfigError(_explain(path, error)) from None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def note(self, group: str, view: GroupView, before: GroupView | None) -> None:
        """Store the changes since the view before. Raises: sqlite3.Error, as for a full disk."""
        at_ms = view.timestamp_ms
        known = self.standings(group) if before is None else before.standings
        with self._db:
            self._note_members(group, view)
            if before is None or not is_watched(before, at_ms):
                self._execute("INSERT INTO watched VALUES (NULL, ?, ?, ?, ?)", group, at_ms, at_ms)
            else:
                self._execute(
                    "WITH last AS (SELECT max(id) AS id FROM watched WHERE cluster = ? AND grp = ?)"
                    " UPDATE watched SET until_ms = ? WHERE id = (SELECT id FROM last)",
                    group,
                    at_ms,
                )
                for seen in list_seen(before, view):
                    self._note_seen(group, seen)
            standings = view.standings
            for queue, standing in standings.items():
                if standing != known.get(queue):
                    self._note_standing(group, queue, standing)
            for queue in known.keys() - standings.keys():
                self._execute(
                    "DELETE FROM owner WHERE cluster = ? AND grp = ? AND queue = ?",
                    group,
                    _text(queue),
                )
            self._note_sample(group, view)
            self._looks += 1
            if self._looks % _PRUNE_EVERY == 0:
                self._prune(at_ms)

    def _note_seen(self, group: str, seen: At) -> None:
        self._execute(
            "INSERT INTO seen VALUES (NULL, ?, ?, ?, ?, ?)",
            group,
            seen.timestamp_ms,
            isinstance(seen.what, OwnerChange),
            msgspec.json.encode(seen.what).decode(),
        )

    def _note_standing(self, group: str, queue: MessageQueue, standing: Standing) -> None:
        self._execute(
            "INSERT INTO owner VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " owners = excluded.owners, since_ms = excluded.since_ms, is_exact = excluded.is_exact",
            group,
            _text(queue),
            _text(standing.owners),
            standing.since_ms,
            standing.is_exact,
        )

    def _note_sample(self, group: str, view: GroupView) -> None:
        last = self._execute(
            "SELECT max(at_ms) FROM sample WHERE cluster = ? AND grp = ?", group
        ).fetchone()[0]
        if last is not None and 0 <= view.timestamp_ms - last < SAMPLE_MS:
            return
        self._execute(
            "INSERT INTO sample VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)",
            group,
            view.timestamp_ms,
            view.known_lag,
            view.unowned,
            view.double,
            view.members.total(),
        )

    def note_rates(
        self, at_ms: int, groups: Mapping[str, FlowRates], topics: Mapping[str, float]
    ) -> None:
        """Store the rates that are not 0. Raises: sqlite3.Error, as for a full disk."""
        rows = [(g, False, each.produced_per_s, each.consumed_per_s) for g, each in groups.items()]
        rows += [(topic, True, per_s, 0.0) for topic, per_s in topics.items()]
        with self._db:
            self._db.executemany(
                "INSERT INTO rate VALUES (NULL, ?, ?, ?, ?, ?, ?)",
                [(self._cluster, *row[:2], at_ms, *row[2:]) for row in rows if any(row[2:])],
            )

    def _note_members(self, group: str, view: GroupView) -> None:
        """Give each new member the smallest free number."""
        known = dict(
            self._execute(
                "SELECT client_id, number FROM member WHERE cluster = ? AND grp = ?", group
            ).fetchall()
        )
        if view.members.keys() - known.keys():
            self._execute(
                "DELETE FROM member WHERE cluster = ? AND grp = ? AND last_ms < ?",
                group,
                view.timestamp_ms - _NUMBER_KEPT_MS,
            )
            known = self.numbers(group)
        taken = set(known.values())
        for client_id in sorted(view.members):
            if client_id not in known:
                number = next(n for n in range(len(taken) + 1) if n not in taken)
                taken.add(number)
                known[client_id] = number
            self._execute(
                "INSERT INTO member VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET last_ms = excluded.last_ms",
                group,
                client_id,
                known[client_id],
                view.timestamp_ms,
            )

    def clusters(self) -> list[str]:
        """Return the clusters whose groups the file has."""
        rows = self._db.execute("SELECT DISTINCT cluster FROM watched ORDER BY 1")
        return [cluster for (cluster,) in rows]

    def groups(self) -> list[str]:
        """Return the groups of the cluster that the file has."""
        rows = self._execute("SELECT DISTINCT grp FROM watched WHERE cluster = ? ORDER BY 1")
        return [group for (group,) in rows]

    def numbers(self, group: str) -> dict[str, int]:
        """Return the numbers of members, also of those that left within the last hour."""
        return dict(
            self._execute(
                "SELECT client_id, number FROM member WHERE cluster = ? AND grp = ?"
                " ORDER BY number",
                group,
            ).fetchall()
        )

    def standings(self, group: str) -> dict[MessageQueue, Standing]:
        """Return each queue's owners and since when, as last stored."""
        rows = self._execute(
            "SELECT queue, owners, since_ms, is_exact FROM owner WHERE cluster = ? AND grp = ?",
            group,
        )
        return {
            _queue(queue): Standing(_ids(owners), since_ms, bool(is_exact))
            for queue, owners, since_ms, is_exact in rows
        }

    def seen(self, group: str, *, since_ms: int) -> list[At]:
        """Return the last `SEEN_MAX` events and changes of owners, the oldest first."""
        rows = self._execute(
            "SELECT at_ms, is_change, what FROM seen WHERE cluster = ? AND grp = ? AND at_ms >= ?"
            " ORDER BY id DESC LIMIT ?",
            group,
            since_ms,
            SEEN_MAX,
        ).fetchall()
        return [
            At(at_ms, _decode(what, is_change=is_change)) for at_ms, is_change, what in rows[::-1]
        ]

    def watched(self, group: str, *, since_ms: int) -> list[tuple[int, int]]:
        """Return the times in which the server looked, as (start, end), the oldest first."""
        rows: list[tuple[int, int]] = self._execute(
            "SELECT from_ms, until_ms FROM watched WHERE cluster = ? AND grp = ? AND until_ms >= ?"
            " ORDER BY id DESC LIMIT ?",
            group,
            since_ms,
            SEEN_MAX,
        ).fetchall()
        return rows[::-1]

    def look_back(self, group: str, *, since_ms: int) -> tuple[list[At], list[tuple[int, int]]]:
        """Return what `seen` and `watched` return, without times whose changes were left out."""
        seen, watched = self.seen(group, since_ms=since_ms), self.watched(group, since_ms=since_ms)
        # If older changes were not read, the owners before the first one read are unknown.
        known_ms = seen[0].timestamp_ms if len(seen) == SEEN_MAX else since_ms
        return seen, [(max(begin, known_ms), end) for begin, end in watched if end > known_ms]

    def samples(self, group: str, *, since_ms: int, bucket_ms: int) -> list[LagSample]:
        """Return the greatest values of each bucket of time, the oldest first."""
        bucket_ms = max(1, bucket_ms)
        rows = self._execute(
            "SELECT min(at_ms), max(lag), max(unowned), max(doubled), max(members)"
            " FROM sample WHERE cluster = ? AND grp = ? AND at_ms >= ? GROUP BY at_ms / ?"
            " ORDER BY 1",
            group,
            since_ms,
            bucket_ms,
        )
        return [LagSample(at_ms // bucket_ms * bucket_ms, *row) for at_ms, *row in rows]

    def rates(
        self, name: str, *, is_topic: bool, since_ms: int, bucket_ms: int
    ) -> list[RateSample]:
        """Return the greatest rates of each bucket of time that has any, the oldest first."""
        rows = self._execute(
            "SELECT at_ms / ?2 * ?2, max(in_per_s), max(out_per_s) FROM rate"
            " WHERE cluster = ?1 AND name = ?3 AND is_topic = ?4 AND at_ms >= ?5"
            " GROUP BY 1 ORDER BY 1",
            bucket_ms,
            name,
            is_topic,
            since_ms,
        )
        return [RateSample(*row) for row in rows]

    def _execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        """Run a statement; its first parameter is the cluster."""
        return self._db.execute(statement, (self._cluster, *values))

    def _thin_rates(self, now_ms: int) -> None:
        """Join what has become older than an hour since the last call; the first row stays."""
        since_ms = self._thinned_ms
        self._thinned_ms = (now_ms - _EACH_RATE_KEPT_MS) // _RATE_MS * _RATE_MS
        joined = (
            "SELECT min(id) AS id, max(in_per_s) AS most_in, max(out_per_s) AS most_out FROM rate"
            " WHERE at_ms >= ?1 AND at_ms < ?2 GROUP BY cluster, name, is_topic, at_ms / ?3"
        )
        values = (since_ms, self._thinned_ms, _RATE_MS)
        self._db.execute(
            f"UPDATE rate SET in_per_s = most_in, out_per_s = most_out FROM ({joined}) AS joined"
            f" WHERE rate.id = joined.id",
            values,
        )
        self._db.execute(
            f"DELETE FROM rate WHERE at_ms >= ?1 AND at_ms < ?2"
            f" AND id NOT IN (SELECT id FROM ({joined}))",
            values,
        )

    def _prune(self, now_ms: int) -> None:
        self._thin_rates(now_ms)
        self._db.execute("DELETE FROM rate WHERE at_ms < ?", (now_ms - _GROUP_KEPT_MS,))
        for table in ("seen", "watched", "sample", "rate"):
            self._db.execute(
                f"DELETE FROM {table} WHERE id <= (SELECT max(id) FROM {table}) - ?", (ROWS_MAX,)
            )
        old = self._db.execute(
            "SELECT cluster, grp FROM watched GROUP BY 1, 2 HAVING max(until_ms) < ?",
            (now_ms - _GROUP_KEPT_MS,),
        ).fetchall()
        for table in ("owner", "seen", "watched", "sample", "member"):
            self._db.executemany(f"DELETE FROM {table} WHERE cluster = ? AND grp = ?", old)


def _text(value: MessageQueue | Sequence[str]) -> str:
    return msgspec.json.encode(value).decode()


def _queue(text: str) -> MessageQueue:
    return msgspec.json.decode(text, type=MessageQueue)


def _ids(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])


def _decode(text: str, *, is_change: bool) -> SeenEvent | OwnerChange:
    if is_change:
        return msgspec.json.decode(text, type=OwnerChange)
    return msgspec.json.decode(text, type=SeenEvent)


def _explain(path: Path | None, error: Exception) -> str:
    return f"the history at {path} cannot be opened: {error}; choose another --data"
