"""Looks at a cluster repeatedly, and keeps the newest series ready for scrapes.

A scrape sends no request to a broker, so scrapes cost the cluster nothing. A pass over the cluster
sends three requests to each broker. For each group it sends three more to each broker and one to
each member. It looks at some groups at a time, since a silent broker delays each look. The watch
looks at a group every second while its queues move.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.calling.repetition import repeat
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.groups import GROUPS_AT_ONCE
from sparrowmq.client.operations.overview import Overview, list_all_groups, take_overview
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.doctor import Severity, diagnose
from sparrowmq.doctor.group_view import GroupView, examine
from sparrowmq.doctor.owner_history import SeenEventKind
from sparrowmq.errors import SparrowError
from sparrowmq.exporter.cluster_series import CLUSTER_SERIES
from sparrowmq.exporter.group_counts import REBALANCE_BUCKETS_S, UNKNOWN_REASON, GroupCounts

LOG = logging.getLogger("sparrowmq.exporter")

# The most groups that are looked at alone; other groups have only the series of the lag.
GROUPS_MAX = 100
# The most queues with series of their own, over all groups.
QUEUES_MAX = 10_000
# The time between two looks at a group whose queues move.
MOVING_S = 1.0
_HELP = {series.name: series for series in CLUSTER_SERIES}
_KINDS: Mapping[str, Callable[..., Metric]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class ClusterWatch:
    """Looks at a cluster, and serves as a Prometheus collector.

    Args:
        directory: the cluster's addresses.
        driver: runs the operations.
        interval_s: the time between the starts of two passes.
    """

    def __init__(self, directory: Directory, driver: AsyncDriver, *, interval_s: float) -> None:
        self._directory = directory
        self._driver = driver
        self._interval_s = interval_s
        self._overview: Overview | None = None
        self._groups: dict[str, GroupCounts] = {}
        self._failure = ""
        # Groups whose last look ended with an error of the exporter.
        self._failed_groups: set[str] = set()
        self._due_ms = 0
        # Each pass replaces the whole list, because another thread serves scrapes.
        self._families: list[Metric] = []
        self._publish()

    def collect(self) -> list[Metric]:
        """Return the series of the last look; any thread may call this method."""
        return self._families

    async def run(self) -> None:
        """Look until cancelled."""
        await repeat(self._pass, name="a look at the cluster", pause_s=self._pause_s)

    async def _pass(self) -> None:
        """Look at the cluster, and until the next pass at the groups whose queues move."""
        self._due_ms = monotonic_ms() + round(self._interval_s * 1000)
        await self.look()
        while left_s := self._pause_s():
            await asyncio.sleep(min(left_s, MOVING_S))
            await self._look_at_moving()

    def _pause_s(self) -> float:
        return max(0, self._due_ms - monotonic_ms()) / 1000

    async def look(self) -> None:
        """Make one pass over the cluster and its groups."""
        try:
            overview = await self._driver.run(take_overview(self._directory))
        except SparrowError as error:
            self._note_failure(str(error))
            self._publish()
            return
        self._overview = overview
        if all(broker.failure for broker in overview.brokers):
            self._note_failure(overview.brokers[0].failure)
            self._publish()
            return
        self._failure = ""
        listing = list_all_groups(self._directory, overview, self._groups)
        names = (await self._driver.run(listing))[:GROUPS_MAX]
        self._groups = {name: self._groups.get(name) or GroupCounts() for name in names}
        self._failed_groups.intersection_update(names)
        # With a silent broker the looks at groups take long.
        self._publish()
        await self._look_at_all(self._groups)
        self._publish()

    def _note_failure(self, failure: str) -> None:
        if not self._failure:
            LOG.warning("the cluster cannot be looked at: %s", failure)
        self._failure = failure

    async def _look_at_moving(self) -> None:
        moving = {name: counts for name, counts in self._groups.items() if counts.is_moving}
        await self._look_at_all(moving)
        if moving:
            self._publish()

    async def _look_at_all(self, groups: Mapping[str, GroupCounts]) -> None:
        pairs = list(groups.items())
        for start in range(0, len(pairs), GROUPS_AT_ONCE):
            async with asyncio.TaskGroup() as looks:
                for name, counts in pairs[start : start + GROUPS_AT_ONCE]:
                    looks.create_task(self._look_at(name, counts))

    async def _look_at(self, name: str, counts: GroupCounts) -> None:
        try:
            # Of a thousand groups, reading waiting messages would take the broker's time.
            snapshot = await self._driver.run(
                take_snapshot(self._directory, name, counts_retries=False)
            )
        except SparrowError as error:
            LOG.debug("group %s cannot be looked at: %s", name, error)
            return
        try:
            counts.note(examine(snapshot), tuple(diagnose(snapshot)))
        except Exception:
            # An error in the look at one group must not stop the looks at others.
            if name not in self._failed_groups:
                LOG.exception("group %s cannot be looked at", name)
            self._failed_groups.add(name)
        else:
            self._failed_groups.discard(name)

    def _publish(self) -> None:
        overview = None if self._failure else self._overview
        self._families = make_families(self._overview, self._groups, is_up=overview is not None)


def make_families(
    overview: Overview | None, groups: Mapping[str, GroupCounts], *, is_up: bool
) -> list[Metric]:
    """Make the series of a cluster and its groups, in the order of the table."""
    gauges = _Families()
    gauges.set("sparrowmq_up", is_up)
    if overview is not None:
        _describe_cluster(gauges, overview)
    left_out = 0
    queue_count = 0
    for counts in groups.values():
        view = counts.view
        if view is None:
            continue
        _describe_group(gauges, view, counts)
        size = len(view.user_queues)
        if queue_count + size <= QUEUES_MAX:
            queue_count += size
            _describe_queues(gauges, view)
        else:
            left_out += size
    gauges.set("sparrowmq_queues_left_out", left_out)
    return list(gauges.families())


class _Families:
    """Collects samples by series; a series that is not in the table is an error."""

    def __init__(self) -> None:
        self._by_name: dict[str, Metric] = {}

    def set(self, name: str, value: float, *labels: str) -> None:
        """Add the sample of a gauge or counter."""
        family = self._family(name)
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        family.add_metric(labels, float(value))

    def add_histogram(
        self, name: str, buckets: list[tuple[str, float]], total: float, *labels: str
    ) -> None:
        """Add a histogram by its cumulative counts."""
        family = self._family(name)
        assert isinstance(family, HistogramMetricFamily)
        family.add_metric(labels, buckets, total)

    def _family(self, name: str) -> Metric:
        if name not in self._by_name:
            series = _HELP[name]
            self._by_name[name] = _KINDS[series.kind](name, series.help, labels=series.labels)
        return self._by_name[name]

    def families(self) -> Iterator[Metric]:
        """Yield the series with samples, in the order of the table."""
        return (self._by_name[name] for name in _HELP if name in self._by_name)


def _describe_cluster(out: _Families, overview: Overview) -> None:
    out.set("sparrowmq_last_snapshot_timestamp_seconds", overview.timestamp_ms / 1000)
    for broker in overview.brokers:
        out.set("sparrowmq_broker_up", not broker.failure, broker.name, broker.cluster)
        for name, value in (
            ("sparrowmq_broker_puts_per_second", broker.puts_per_s),
            ("sparrowmq_broker_gets_per_second", broker.gets_per_s),
            ("sparrowmq_broker_disk_used_ratio", broker.disk_used_ratio),
            (
                "sparrowmq_broker_dispatch_behind_bytes",
                _number(broker.runtime, "dispatchBehindBytes"),
            ),
        ):
            if value is not None:
                out.set(name, value, broker.name, broker.cluster)
    for topic in overview.topics:
        for broker_name, end in () if topic.is_internal else sorted(topic.ends_at.items()):
            out.set("sparrowmq_topic_end_offset", end, topic.topic, broker_name)
    answering = [broker.name for broker in overview.brokers if not broker.failure]
    for group in overview.groups:
        out.set("sparrowmq_group_retry_lag", group.retry_lag, group.group)
        for name in answering:
            out.set("sparrowmq_group_retried", group.retried_at.get(name, 0), group.group, name)
        for progress in group.topics:
            out.set("sparrowmq_group_lag", progress.lag, group.group, progress.topic)


def _number(table: Mapping[str, str], name: str) -> float | None:
    try:
        return float(table[name])
    except (KeyError, ValueError):
        return None


def _describe_group(out: _Families, view: GroupView, counts: GroupCounts) -> None:
    name, members = view.snapshot.group, view.members
    if view.member_count is not None:
        out.set("sparrowmq_group_members", view.member_count, name)
    if view.in_flight is not None:
        out.set("sparrowmq_group_in_flight", view.in_flight, name)
        out.set("sparrowmq_group_renewals", view.renewals, name)
    if (oldest := view.oldest_in_flight) is not None:
        out.set("sparrowmq_group_oldest_in_flight_seconds", oldest[1] / 1000, name)
    # No broker knows what members in BROADCASTING have consumed.
    for topic in () if view.snapshot.is_broadcasting else view.snapshot.user_topics:
        waits_s = view.wait_ms(topic.subscribe_queues) / 1000
        out.set("sparrowmq_group_lag_seconds", waits_s, name, topic.topic)
    for broker in view.snapshot.last.brokers:
        if not broker.failure and broker.dead_letters is not None:
            count = broker.dead_letters.message_count
            out.set("sparrowmq_group_dead_letters", count, name, broker.broker_name)
    for client_id, load in sorted(view.loads.items()):
        out.set("sparrowmq_member_load", load, name, client_id)
    out.set("sparrowmq_duplicate_client_ids", members.total() - len(members), name)
    out.set("sparrowmq_unowned_queues", view.unowned, name)
    out.set("sparrowmq_multiply_owned_queues", view.double, name)
    for severity in Severity:
        count = sum(finding.severity is severity for finding in counts.findings)
        out.set("sparrowmq_findings", count, name, severity.name.lower())
    # A counter that began at 1 would have made no growth by that.
    for reason in (*SeenEventKind, UNKNOWN_REASON):
        out.set("sparrowmq_rebalance", counts.rebalances[reason], name, reason)
    out.set("sparrowmq_possible_duplicates", counts.possible_duplicates, name)
    counted, buckets = 0, []
    for bound in (*REBALANCE_BUCKETS_S, float("inf")):
        counted += counts.rebalance_s[bound]
        buckets.append(("+Inf" if bound == float("inf") else str(bound), float(counted)))
    out.add_histogram("sparrowmq_rebalance_seconds", buckets, counts.rebalance_s_sum, name)


def _describe_queues(out: _Families, view: GroupView) -> None:
    for queue in view.user_queues:
        labels = view.snapshot.group, queue.topic, queue.broker_name, str(queue.queue_id)
        each = view.queues[queue]
        if not view.ownership.is_by_message:
            out.set("sparrowmq_queue_owners", len(each.owners), *labels)
        for client_id, count in sorted(Counter(each.owner_ids).items()):
            out.set("sparrowmq_queue_owner", count, *labels, client_id)
        if each.lag is not None:
            out.set("sparrowmq_queue_lag", each.lag, *labels)
