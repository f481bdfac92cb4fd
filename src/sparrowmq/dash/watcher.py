"""Looks at a cluster repeatedly, keeps the newest look, and wakes the pages that wait for news.

One task looks at the whole cluster, another at single groups: at the groups that a page shows, more
often while their queues move; and in turn at the groups that need attention most. Both ask a large
cluster no more often than a small one. After a failed look the watcher keeps the error beside the
last good look, and tries again.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.calling.repetition import repeat
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.overview import (
    FlowRates,
    GroupOverview,
    Overview,
    TopicOverview,
    group_flows,
    list_all_groups,
    take_overview,
    topic_rates,
)
from sparrowmq.client.operations.producers import ConnectedProducer, list_producers
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.dash.history import History
from sparrowmq.doctor import Finding, GroupSnapshot, diagnose
from sparrowmq.doctor.group_view import GroupView, Standing, examine, is_watched
from sparrowmq.errors import SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import check_group

LOG = logging.getLogger("sparrowmq.dash")

# The time between two looks at a group: while a page shows it and its queues move, while a page
# shows it, and otherwise.
MOVING_MS, SHOWN_MS, OTHERS_MS = 400, 1_500, 20_000
# A group counts as moving so long after its last change of an owner.
STILL_AFTER_MS = 4_000
# The most looks at once; the most groups not shown that are looked at in turn, and the time between
# two of them. A look takes three requests to each broker and one to each member.
LOOKS_AT_ONCE, TURNS_MAX, TURN_MS = 4, 20, 1_000
# The time between two looks at the whole cluster, and after a failed one.
OVERVIEW_MS, RETRY_MS = 5_000, 1_500
# A group that no page shows is kept so long after the last request for it.
KEPT_MS = 120_000
# Rates are taken over looks so far apart, which is at least as long as the doctor's rules need.
RATE_MS = 7_000
_SAMPLES_MAX = RATE_MS // MOVING_MS + 2
_TICK_S = 0.1


@dataclass(slots=True, kw_only=True)
class WatchedGroup:
    """A group and its last look. All times are monotonic.

    Args:
        view, findings: the last view and its findings; None and empty before the first.
        failure: the error of the last look; "" if it succeeded.
        shown: the number of pages that show the group.
        due_ms: the time of the next look.
        moved_ms: the time of the last change of an owner.
        wanted_ms: the time of the last request for the group.
        snapshots: the looks of the last `RATE_MS`.
    """

    name: str
    view: GroupView | None = None
    findings: tuple[Finding, ...] = ()
    failure: str = ""
    shown: int = 0
    due_ms: int = 0
    moved_ms: int | None = None
    wanted_ms: int = 0
    snapshots: list[GroupSnapshot] = field(default_factory=list)
    is_being_looked_at: bool = False


class KnownProducers(NamedTuple):
    """The producers at some brokers, by the brokers' addresses, at a monotonic time."""

    addresses: Mapping[str, str]
    at_ms: int
    found: Sequence[ConnectedProducer]


class Watcher:
    """Looks at a cluster and its groups.

    Args:
        directory: the cluster's addresses.
        driver: runs the operations.
        history: stores the looks.

    Attributes:
        overview: the last look at the cluster; None before the first.
        flows: the rates of each group, by name.
        names: the names of all groups, those that need attention most first.
        groups: the groups that are looked at alone, by name.
        failure: the error of the last look at the cluster; "" if it succeeded.
        history_failure: the error of the history; "" if the history is kept.
        is_over: whether there will be no more news.
        topic_rates: the messages a second that each topic receives, by name.
    """

    def __init__(self, directory: Directory, driver: AsyncDriver, history: History) -> None:
        self.directory = directory
        self.driver = driver
        self.history = history
        self.overview: Overview | None = None
        self.flows: dict[str, FlowRates] = {}
        self.names: list[str] = []
        self.groups: dict[str, WatchedGroup] = {}
        self.failure = ""
        self.history_failure = ""
        self.is_over = False
        self.topic_rates: dict[str, float] = {}
        self._versions: dict[str, int] = {}
        self._news = asyncio.Condition()
        self._looks: set[asyncio.Task[None]] = set()
        self._turn_ms = 0
        self._producers = KnownProducers({}, -OVERVIEW_MS, ())

    @property
    def seen_topics(self) -> tuple[TopicOverview, ...]:
        """The topics of the last look at the cluster; empty before the first."""
        return () if self.overview is None else self.overview.topics

    @property
    def seen_groups(self) -> tuple[GroupOverview, ...]:
        """The groups of the last look at the cluster; empty before the first."""
        return () if self.overview is None else self.overview.groups

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(
                    repeat(self.survey, name="a look at the cluster", pause_s=self._survey_pause_s)
                )
                tasks.create_task(
                    repeat(self._begin_looks, name="the choice of groups", pause_s=lambda: _TICK_S)
                )
        finally:
            for look in self._looks:
                look.cancel()
            await asyncio.gather(*self._looks, return_exceptions=True)

    @contextmanager
    def showing(self, name: str | None) -> Generator[None]:
        """Look at a group more often while the block runs; None names no group."""
        if name is None:
            yield
            return
        group = self._group(name)
        group.shown += 1
        group.due_ms = 0
        try:
            yield
        finally:
            group.shown -= 1

    def version(self, subject: str) -> int:
        """Return the number of news about a group, or about the whole cluster, which is ""."""
        return self._versions.get(subject, 0)

    async def wait(self, subject: str, seen: int, *, timeout_s: float) -> int:
        """Wait for a newer version than `seen`, or for the timeout; return the version."""
        async with self._news:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait_for(lambda: self.version(subject) > seen or self.is_over)
        return self.version(subject)

    async def end(self) -> None:
        """Wake all waiting pages: there will be no more news."""
        async with self._news:
            self.is_over = True
            self._news.notify_all()

    async def find(self, name: str) -> WatchedGroup:
        """Return a group with its last look; look at it now if there is none.

        Raises: ConfigError for a bad name; UsageError for a group that no broker knows; another
        SparrowError if the group was never seen and the look fails.
        """
        check_group(name)
        known = self.groups.get(name)
        if known is not None and known.view is not None:
            known.wanted_ms = monotonic_ms()
            return known
        snapshot = await self.driver.run(take_snapshot(self.directory, name))
        group = self._group(name)
        self._take(group, snapshot)
        return group

    async def look_now(self, name: str) -> None:
        """Look at a group at once, as after a change of its offsets."""
        await self._look(self._group(name))

    async def producers(self, addresses: Mapping[str, str]) -> Sequence[ConnectedProducer]:
        """Return the producers at some brokers, which are asked as seldom as the whole cluster.

        Raises: as `list_producers`.
        """
        known, now_ms = self._producers, monotonic_ms()
        if known.addresses != addresses or now_ms - known.at_ms >= OVERVIEW_MS:
            asking = list_producers(addresses, timeout_ms=self.directory.timeout_ms)
            known = KnownProducers(dict(addresses), now_ms, await self.driver.run(asking))
            self._producers = known
        return known.found

    async def survey(self) -> None:
        """Look at the cluster at once, as after a change of topics."""
        try:
            asked = [name for name, group in self.groups.items() if group.shown]
            found = await self.driver.run(take_overview(self.directory, asked_first=asked))
            silent = [broker for broker in found.brokers if broker.failure]
            if len(silent) == len(found.brokers):
                self.failure = silent[0].failure
            else:
                listing = list_all_groups(self.directory, found, self.names)
                self._take_overview(found, await self.driver.run(listing))
                self.failure = ""
        except SparrowError as error:
            self.failure = str(error)
        except Exception:
            self.failure = "an error of this page; its log has more"
            raise
        finally:
            await self.announce("")

    def _survey_pause_s(self) -> float:
        return (RETRY_MS if self.failure else OVERVIEW_MS) / 1000

    def _take_overview(self, found: Overview, names: list[str]) -> None:
        before, self.overview = self.overview, found
        if before is not None:
            self.flows, self.topic_rates = group_flows(before, found), topic_rates(before, found)
            with self._keeping_history():
                self.history.note_rates(found.timestamp_ms, self.flows, self.topic_rates)
        self.names = names
        first = set(self.names[:TURNS_MAX])
        for name in self.names[:TURNS_MAX]:
            self._group(name)
        kept_ms = monotonic_ms() - KEPT_MS
        for name, group in list(self.groups.items()):
            if not group.shown and name not in first and group.wanted_ms < kept_ms:
                del self.groups[name]
                self._versions.pop(name, None)

    async def _begin_looks(self) -> None:
        for group in self._due():
            task = asyncio.create_task(self._look_safely(group))
            self._looks.add(task)
            task.add_done_callback(self._looks.discard)

    def _due(self) -> list[WatchedGroup]:
        now_ms = monotonic_ms()
        due = [g for g in self.groups.values() if g.due_ms <= now_ms and not g.is_being_looked_at]
        chosen = [group for group in due if group.shown]
        others = sorted((g for g in due if not g.shown), key=lambda group: group.due_ms)
        if others and now_ms - self._turn_ms >= TURN_MS:
            self._turn_ms = now_ms
            chosen.append(others[0])
        return chosen[: max(0, LOOKS_AT_ONCE - len(self._looks))]

    def _group(self, name: str) -> WatchedGroup:
        group = self.groups.setdefault(name, WatchedGroup(name=name))
        group.wanted_ms = monotonic_ms()
        return group

    async def _look_safely(self, group: WatchedGroup) -> None:
        try:
            await self._look(group)
        except Exception:
            # An error in the look at one group must not stop the looks at others.
            if not group.failure:
                LOG.exception("group %s cannot be looked at", group.name)
            group.failure = "an error of this page; its log has more"

    async def _look(self, group: WatchedGroup) -> None:
        group.is_being_looked_at = True
        try:
            snapshot = await self.driver.run(take_snapshot(self.directory, group.name))
        except SparrowError as error:
            group.failure = str(error)
        else:
            self._take(group, snapshot)
        finally:
            group.is_being_looked_at = False
            group.due_ms = monotonic_ms() + _pause_ms(group)
        await self.announce(group.name)

    def _take(self, group: WatchedGroup, snapshot: GroupSnapshot) -> None:
        """Keep a look; take rates from the oldest look of the last `RATE_MS`."""
        now_ms = snapshot.last.at_ms
        recent = [s for s in group.snapshots if 0 < now_ms - s.last.at_ms <= RATE_MS]
        earlier = recent[:1] or [s for s in group.snapshots[-1:] if s.last.at_ms < now_ms]
        samples = (*(s.last for s in earlier), snapshot.last)
        group.snapshots = [*recent, snapshot][-_SAMPLES_MAX:]
        group.failure = ""
        snapshot, before = replace(snapshot, samples=samples), group.view
        known: Mapping[MessageQueue, Standing] = {} if before is None else before.standings
        if before is None:
            with self._keeping_history():
                known = self.history.standings(group.name)
        watched = is_watched(before, snapshot.last.timestamp_ms)
        view = group.view = examine(snapshot, known, is_watched=watched)
        group.findings = tuple(diagnose(snapshot))
        if before is None or before.standings != view.standings:
            group.moved_ms = now_ms
        with self._keeping_history():
            self.history.note(group.name, view, before)
            self.history_failure = ""

    @contextmanager
    def _keeping_history(self) -> Generator[None]:
        """Note an error of the history, which stops neither the looks nor the pages."""
        try:
            yield
        except sqlite3.Error as error:
            if not self.history_failure:
                LOG.warning("the history is not kept: %s", error)
            self.history_failure = str(error)

    async def announce(self, subject: str) -> None:
        """Wake the pages that wait for news of a subject."""
        async with self._news:
            self._versions[subject] = self.version(subject) + 1
            self._news.notify_all()


def _pause_ms(group: WatchedGroup) -> int:
    if not group.shown:
        return OTHERS_MS
    is_moving = group.moved_ms is not None and monotonic_ms() - group.moved_ms < STILL_AFTER_MS
    return MOVING_MS if is_moving and not group.failure else SHOWN_MS
