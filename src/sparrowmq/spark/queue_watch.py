"""A stream's view of its queues between micro-batches, in the process beside the driver.

Tests: test_stream_reader.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from sparrowmq.calling import clock
from sparrowmq.calling.effects import Operation
from sparrowmq.errors import ConfigError, SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.spark.bounds import Bounds, Loss, Offsets, find_refilled
from sparrowmq.spark.discovery import Discovery, begin_wait_ms, discover
from sparrowmq.spark.failures import settle
from sparrowmq.spark.options import SourceOptions
from sparrowmq.spark.positions import find_offsets, first_store_times, sample_sizes
from sparrowmq.spark.topic_queues import (
    BOUNDS_AGE_MS_MAX,
    ROUTE_AGE_MS_MAX,
    Cluster,
    connect,
    persist,
)

T = TypeVar("T")

# Between looks that are closer, no broker stops, loses its store, starts, and gets messages.
REFILL_MS_MIN = 1_000
# The time after a commit that failed: Spark asks every 10 ms, and a group may be refused for ever.
COMMIT_PAUSE_MS = 10_000

_LOG = logging.getLogger("sparrowmq.spark")


class QueueWatch:
    """Asks for the bounds of the queues, and keeps the answer for a short time."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._found_ms = 0
        self._committed: dict[MessageQueue, int] = {}
        self._commit_due_ms = 0
        self._is_after_pause = True
        # The queues that were waited for in vain; every batch would wait for them again.
        self._given_up: frozenset[MessageQueue] = frozenset()
        # The last answer.
        self.found: Discovery | None = None

    def look(self, expected: Offsets) -> Discovery:
        """Return the bounds of the queues; ask for them unless the last answer is recent.

        Args:
            expected: the queues that existed before; a missing queue is waited for once, also if
                the last answer, which has not got it, is recent.

        Raises: ConfigError if the queues are of a topic that the query does not read; errors of
            `discover`.
        """
        options = self._options
        expected = of_query(options, expected)
        now_ms = clock.monotonic_ms()
        is_fresh = now_ms - self._found_ms < BOUNDS_AGE_MS_MAX
        if (
            self.found is not None
            and is_fresh
            and expected.keys() <= self.found.queues | self._given_up
        ):
            return self.found
        cluster = connect(options)
        known = expected or (() if self.found is None else self.found.bounds)
        found = cluster.run(
            discover(
                cluster,
                options,
                expected=known,
                given_up=self._given_up,
                route_age_ms_max=ROUTE_AGE_MS_MAX,
            )
        )
        self._given_up = frozenset(known) - found.queues
        # The answer may have been waited for: the broker was away meanwhile.
        found_ms = clock.monotonic_ms()
        self._is_after_pause |= found_ms - self._found_ms >= REFILL_MS_MIN
        self.found, self._found_ms = found, found_ms
        return found

    def find_refilled(self, offsets: Offsets, stored_by_ms: Offsets) -> list[Loss]:
        """Find queues that were emptied, and filled beyond their offset, since the last look.

        Args:
            offsets: the offsets to read next.
            stored_by_ms: the time by which the messages before each offset were stored.
        """
        if self.found is None:
            return []
        bounds = self.found.bounds
        # The answer itself has the time of a queue's last message.
        stored_ms = {
            queue: bounds[queue].last_timestamp_ms
            for queue, offset in offsets.items()
            if queue in bounds and bounds[queue].max_offset == offset
        }
        if self._is_after_pause:
            waiting = {
                queue: offset
                for queue, offset in offsets.items()
                if queue in stored_by_ms
                and queue in bounds
                and bounds[queue].min_offset < offset < bounds[queue].max_offset
            }
            group = self._options.pull_group
            stored_ms |= self._ask(
                waiting, lambda cluster: first_store_times(cluster, waiting, bounds, group=group)
            )
            self._is_after_pause = False
        return find_refilled(offsets, stored_by_ms, stored_ms)

    def stored_by(
        self, offsets: Offsets, begin: Offsets, begin_stored_by_ms: Offsets
    ) -> dict[MessageQueue, int]:
        """Return the time by which the messages before each offset were stored.

        Args:
            offsets: the ends of the next micro-batch.
            begin: its starts; where both are equal, the time stays too.
            begin_stored_by_ms: the times of the starts.
        """
        bounds = {} if self.found is None else self.found.bounds
        times = {
            queue: begin_stored_by_ms.get(queue)
            if begin.get(queue) == offset
            else bounds[queue].last_timestamp_ms
            for queue, offset in offsets.items()
            if begin.get(queue) == offset or queue in bounds
        }
        return {queue: time_ms for queue, time_ms in times.items() if time_ms is not None}

    def sample_sizes(self, begin: Offsets, bounds: Bounds) -> dict[MessageQueue, int]:
        """Return the approximate size of the next messages of each queue."""
        waiting = {
            queue: max(begin.get(queue, 0), found.min_offset)
            for queue, found in bounds.items()
            if begin.get(queue, 0) < found.max_offset
        }
        group = self._options.pull_group
        return self._ask(waiting, lambda cluster: sample_sizes(cluster, waiting, group=group))

    def first_offsets(self) -> dict[MessageQueue, int]:
        """Return the start offsets of a query without a checkpoint."""
        options, bounds = self._options, self.look({}).bounds
        choice = self._ask(
            bounds,
            lambda cluster: find_offsets(
                cluster,
                options.starting,
                bounds,
                group=options.group,
                pull_group=options.pull_group,
            ),
            wait_ms=begin_wait_ms(options),
        )
        (offsets,) = settle([choice], bounds, fail=options.fail_on_data_loss)
        return offsets

    def commit(self, offsets: Mapping[MessageQueue, int], bounds: Bounds) -> None:
        """Commit the offsets that are new since the last commit, unless that has just failed."""
        options, now_ms = self._options, clock.monotonic_ms()
        if options.group is None or not options.commit_offsets or now_ms < self._commit_due_ms:
            return
        fresh = {
            queue: offset
            for queue, offset in offsets.items()
            if queue in bounds and self._committed.get(queue) != offset
        }
        if not fresh:
            return
        cluster = connect(options)
        try:
            cluster.run(cluster.commit(options.group, fresh))
        except SparrowError as error:
            self._commit_due_ms = now_ms + COMMIT_PAUSE_MS
            _LOG.warning("offsets of group %s are not committed: %s", options.group, error)
        else:
            self._committed.update(fresh)

    def _ask(
        self,
        queues: Collection[MessageQueue],
        ask: Callable[[Cluster], Operation[T]],
        *,
        wait_ms: int | None = None,
    ) -> T:
        """Ask the brokers of queues; wait for one that has stopped since the last look."""
        cluster = connect(self._options)
        topics = {queue.topic for queue in queues}

        def attempt() -> Operation[T]:
            yield from cluster.refresh(topics, age_ms_max=ROUTE_AGE_MS_MAX)
            return (yield from ask(cluster))

        if wait_ms is None:
            wait_ms = self._options.wait_for_brokers_ms
        return cluster.run(persist(wait_ms, attempt))


def of_query(options: SourceOptions, offsets: Offsets) -> Offsets:
    """Return the offsets, of a checkpoint, that are of queues that the query reads.

    Raises: ConfigError if there are others and none may be lost.
    """
    others = options.others_of(offsets.keys())
    if others and options.fail_on_data_loss:
        topic, broker_name, queue_id = others[0]
        what = f"topic {topic!r}"
        if options.assign is not None:
            what = f"queue {topic}/{broker_name}/{queue_id}"
        raise ConfigError(
            f"the checkpoint has offsets of {what}, and this query reads {_what_is_read(options)}; "
            f"give this query's own checkpoint, or an empty directory for a new one; "
            f'.option("failOnDataLoss", "false") leaves the {what.partition(" ")[0]} out'
        )
    if not others:
        return offsets
    left_out = frozenset(others)
    return {queue: offsets[queue] for queue in offsets if queue not in left_out}


def _what_is_read(options: SourceOptions) -> str:
    if options.assign is not None:
        queues = (f"{topic}/{name}/{number}" for topic, name, number in sorted(options.assign))
        return ", ".join(queues)
    pattern = options.topic_pattern
    return ", ".join(options.topics) if pattern is None else f"the topics that match {pattern}"
