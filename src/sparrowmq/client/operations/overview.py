"""Look at a whole cluster at once: its brokers, its topics, and how far behind every group is.

The number of requests does not depend on how many topics and groups there are: three for each
broker, and `GROUPS_ASKED_MAX` more at most for the members of the groups that need attention first.
A broker that does not answer is noted, and the rest goes on.

Source: AdminBrokerProcessor.fetchAllConsumeStatsInBroker, BrokerStatsData.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec import Struct

from sparrowmq.calling.effects import Operation, now, timestamp
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.gather import gather
from sparrowmq.client.operations.membership import consumer_list
from sparrowmq.client.operations.request import ask, decode_answer
from sparrowmq.client.operations.routes import BrokerAt, find_brokers
from sparrowmq.errors import BrokerError, SparrowError
from sparrowmq.model.names import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    is_system_group,
    is_system_topic,
    retry_topic,
)
from sparrowmq.protocol.bodies import (
    PERM_READ,
    PERM_WRITE,
    ConsumeStatsList,
    KVTable,
    OffsetWrapper,
    TopicConfig,
    TopicConfigTable,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FRAME_BYTES_MAX
from sparrowmq.protocol.headers import GetConsumeStatsInBrokerHeader
from sparrowmq.protocol.wire_names import Int64, wire_names

# Groups whose members are asked for. With the three requests below: 15 for a broker at most.
GROUPS_ASKED_MAX = 12
# Apache's broker goes through all its offsets once for each group: seconds, with thousands.
STATS_TIMEOUT_MS = 15_000
# Time in which little moves says little about a rate.
RATE_INTERVAL_MS_MIN = 500


class TopicProgress(NamedTuple):
    """How far a group is in one topic, over all queues of all brokers that answered.

    Args:
        topic: its name.
        queue_count: how many queues there are.
        max_offset: the ends of all queues, added up.
        committed_offset: what the group has committed, added up.
        lag: messages not consumed yet.
        queue_lag_max: those of the queue that is furthest behind.
        last_timestamp_ms: when the last message consumed was stored, of the queue where that was
            longest ago among those that are behind; None if none is, or nobody knows.
    """

    topic: str
    queue_count: int
    max_offset: int
    committed_offset: int
    lag: int
    queue_lag_max: int
    last_timestamp_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOverview:
    """A consumer group at a glance.

    Args:
        group: its name.
        topics: how far it is in each topic in which it has committed something, by name; without
            the messages that come again.
        retry_lag: messages that failed and wait to come again.
        members: the client ids that a broker lists, duplicates included; None if nobody was asked.
    """

    group: str
    topics: tuple[TopicProgress, ...] = ()
    retry_lag: int = 0
    members: tuple[str, ...] | None = None

    @property
    def lag(self) -> int:
        """Messages not consumed yet, those that come again included."""
        return self.retry_lag + sum(topic.lag for topic in self.topics)

    @property
    def known_lag(self) -> int | None:
        """`lag`; None for a group that has committed nothing, of which nobody knows where it is."""
        return self.lag if self.topics or self.retry_lag else None

    @property
    def duplicate_ids(self) -> tuple[str, ...]:
        """The client ids that more than one connection has."""
        ids = self.members or ()
        return tuple(sorted({each for each in ids if ids.count(each) > 1}))


class TopicPlace(NamedTuple):
    """A topic's queues at one broker."""

    broker_name: str
    read_count: int
    write_count: int
    is_readable: bool
    is_writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOverview:
    """A topic at a glance.

    Args:
        topic: its name.
        places: its queues, by broker.
        is_internal: whether RocketMQ made it: for itself, for retries, or for dead letters.
        groups: the groups that have committed something in it, by name.
        max_offset: the ends of all its queues, added up; None if no group shows them.
    """

    topic: str
    places: tuple[TopicPlace, ...]
    is_internal: bool = False
    groups: tuple[str, ...] = ()
    max_offset: int | None = None

    @property
    def queue_count(self) -> int:
        """Queues to consume from, over all brokers."""
        return sum(place.read_count for place in self.places if place.is_readable)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOverview:
    """A broker at a glance.

    Args:
        name, cluster, address: who it is, and where it was asked.
        runtime: what it says of itself, under RocketMQ's names.
        failure: why something is missing, "" if nothing is.
    """

    name: str
    cluster: str
    address: str
    runtime: Mapping[str, str] = field(default_factory=dict, hash=False)
    failure: str = ""

    @property
    def version(self) -> str:
        """The version that it says it has, "" if it says none."""
        return self.runtime.get("brokerVersionDesc", "").removeprefix("V").replace("_", ".")

    @property
    def puts_per_s(self) -> float | None:
        """Messages stored a second, of late."""
        return _first_number(self.runtime.get("putTps", ""))

    @property
    def gets_per_s(self) -> float | None:
        """Messages given out a second, of late."""
        return _first_number(self.runtime.get("getTransferedTps", ""))

    @property
    def disk_used_ratio(self) -> float | None:
        """How full the disk of its commit log is, 0 to 1."""
        return _first_number(self.runtime.get("commitLogDiskRatio", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A cluster at a glance.

    Args:
        at_ms: when, on a clock that only runs forward.
        timestamp_ms: when, by the wall clock.
        brokers, topics: by name.
        groups: those that need attention first; see `by_attention`.
    """

    at_ms: int
    timestamp_ms: int
    brokers: tuple[BrokerOverview, ...]
    topics: tuple[TopicOverview, ...]
    groups: tuple[GroupOverview, ...]


class FlowRates(NamedTuple):
    """How fast something moved between two looks, in messages a second."""

    produced_per_s: float
    consumed_per_s: float


def by_attention(group: GroupOverview) -> tuple[bool, bool, int, str]:
    """Return the key that sorts first what needs a look first.

    Duplicate ids come first, then messages that nobody is there to consume, then the largest lag.
    """
    is_abandoned = group.members == () and group.lag > 0
    return (not group.duplicate_ids, not is_abandoned, -group.lag, group.group)


def group_flows(before: Overview, after: Overview) -> dict[str, FlowRates]:
    """Return how fast each group moved between two looks, by name; empty if they are too close."""
    seconds = _seconds_between(before, after)
    if seconds is None:
        return {}
    then = {(group.group, t.topic): t for group in before.groups for t in group.topics}
    return {
        group.group: FlowRates(
            sum(t.max_offset - b.max_offset for t, b in pairs) / seconds,
            sum(t.committed_offset - b.committed_offset for t, b in pairs) / seconds,
        )
        for group in after.groups
        if (
            pairs := [
                (t, then[key]) for t in group.topics if (key := (group.group, t.topic)) in then
            ]
        )
    }


def topic_rates(before: Overview, after: Overview) -> dict[str, float]:
    """Return how many messages a second each topic got between two looks, by name."""
    seconds = _seconds_between(before, after)
    if seconds is None:
        return {}
    then = {t.topic: t.max_offset for t in before.topics}
    return {
        t.topic: (t.max_offset - known) / seconds
        for t in after.topics
        if t.max_offset is not None and (known := then.get(t.topic)) is not None
    }


def _seconds_between(before: Overview, after: Overview) -> float | None:
    interval_ms = after.at_ms - before.at_ms
    return interval_ms / 1000 if interval_ms >= RATE_INTERVAL_MS_MIN else None


def take_overview(directory: Directory, *, asked_first: Sequence[str] = ()) -> Operation[Overview]:
    """Look at a cluster once.

    Args:
        asked_first: groups whose members are asked for before those of others.

    Raises: ConnectFailed if no name server answers; RouteError if no broker is known.
    """
    known = yield from find_brokers(directory.name_servers, timeout_ms=directory.timeout_ms)
    views = yield from gather([_look_at(directory, broker) for broker in known], name="overview")
    at_ms = yield from now()
    at_timestamp_ms = yield from timestamp()
    groups = _merge_groups(views)
    wanted = {group: place for place, group in enumerate(asked_first)}
    first = sorted(groups, key=lambda g: (wanted.get(g.group, len(wanted)), *by_attention(g)))
    answering = [view.broker.address for view in views if not view.broker.failure]
    members = yield from gather(
        [_members(directory, answering, group.group) for group in first[:GROUPS_ASKED_MAX]],
        name="members",
    )
    asked = dict(zip((group.group for group in first), members, strict=False))
    groups = [
        GroupOverview(
            group=group.group,
            topics=group.topics,
            retry_lag=group.retry_lag,
            members=asked.get(group.group),
        )
        for group in groups
    ]
    return Overview(
        at_ms=at_ms,
        timestamp_ms=at_timestamp_ms,
        brokers=tuple(view.broker for view in views),
        topics=tuple(_merge_topics(views, groups)),
        groups=tuple(sorted(groups, key=by_attention)),
    )


class _View(NamedTuple):
    """What one broker says."""

    broker: BrokerOverview
    topics: Mapping[str, TopicConfig]
    progress: Mapping[str, Sequence[TopicProgress]]


def _look_at(directory: Directory, at: BrokerAt) -> Operation[_View]:
    runtime: Mapping[str, str] = {}
    topics: Mapping[str, TopicConfig] = {}
    progress: Mapping[str, Sequence[TopicProgress]] = {}
    failure = ""
    timeout_ms = directory.timeout_ms
    try:
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        reply = yield from ask(at.address, code, timeout_ms=timeout_ms)
        runtime = decode_answer(KVTable, reply, at.address).table
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        reply = yield from ask(at.address, code, timeout_ms=timeout_ms)
        topics = decode_answer(
            TopicConfigTable, reply, at.address, bytes_max=FRAME_BYTES_MAX
        ).topic_config_table
        code, header = RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader()
        stats_timeout_ms = max(timeout_ms, STATS_TIMEOUT_MS)
        reply = yield from ask(at.address, code, header, timeout_ms=stats_timeout_ms)
        progress = read_progress(reply, at.address)
    except SparrowError as error:
        failure = str(error)
    broker = BrokerOverview(
        name=at.name, cluster=at.cluster, address=at.address, runtime=runtime, failure=failure
    )
    return _View(broker, topics, progress)


def _members(
    directory: Directory, addresses: Sequence[str], group: str
) -> Operation[tuple[str, ...] | None]:
    """Return a group's client ids from the first broker that lists any; None if none can say."""
    found: tuple[str, ...] | None = None
    for address in addresses:
        try:
            ids = yield from consumer_list(address, group, timeout_ms=directory.timeout_ms)
        except SparrowError as error:
            # The broker has no code of its own for a group that nobody is in.
            if isinstance(error, BrokerError) and error.code == ResponseCode.SYSTEM_ERROR:
                found = ()
            continue
        if ids:
            return tuple(sorted(ids))
        found = ()
    return found


def _merge_groups(views: Sequence[_View]) -> list[GroupOverview]:
    by_group: dict[str, dict[str, TopicProgress]] = {}
    for view in views:
        for group, topics in view.progress.items():
            if is_system_group(group):
                continue
            merged = by_group.setdefault(group, {})
            for progress in topics:
                known = merged.get(progress.topic)
                merged[progress.topic] = progress if known is None else _add(known, progress)
    groups = []
    for group, found in sorted(by_group.items()):
        retries = found.pop(retry_topic(group), None)
        groups.append(
            GroupOverview(
                group=group,
                topics=tuple(found[topic] for topic in sorted(found)),
                retry_lag=0 if retries is None else retries.lag,
            )
        )
    return groups


def _add(one: TopicProgress, other: TopicProgress) -> TopicProgress:
    times = [t for t in (one.last_timestamp_ms, other.last_timestamp_ms) if t is not None]
    return TopicProgress(
        topic=one.topic,
        queue_count=one.queue_count + other.queue_count,
        max_offset=one.max_offset + other.max_offset,
        committed_offset=one.committed_offset + other.committed_offset,
        lag=one.lag + other.lag,
        queue_lag_max=max(one.queue_lag_max, other.queue_lag_max),
        last_timestamp_ms=min(times, default=None),
    )


def _merge_topics(
    views: Sequence[_View], groups: Sequence[GroupOverview]
) -> Iterator[TopicOverview]:
    places: dict[str, list[TopicPlace]] = {}
    for view in views:
        for name, config in view.topics.items():
            place = TopicPlace(
                view.broker.name,
                config.read_queue_nums,
                config.write_queue_nums,
                bool(config.perm & PERM_READ),
                bool(config.perm & PERM_WRITE),
            )
            places.setdefault(name, []).append(place)
    consumed_by: dict[str, list[str]] = {}
    ends: dict[str, int] = {}
    for group in groups:
        for progress in group.topics:
            consumed_by.setdefault(progress.topic, []).append(group.group)
            # Groups without an offset at some broker are not shown that broker's queues.
            ends[progress.topic] = max(ends.get(progress.topic, 0), progress.max_offset)
    # Each broker makes a topic of its name, of its cluster's, and one for replies to requests.
    own = {view.broker.name for view in views}
    own |= {name for v in views for name in (v.broker.cluster, f"{v.broker.cluster}_REPLY_TOPIC")}
    prefixes = (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)
    for name in sorted(places):
        yield TopicOverview(
            topic=name,
            places=tuple(places[name]),
            is_internal=name in own or is_system_topic(name) or name.startswith(prefixes),
            groups=tuple(consumed_by.get(name, ())),
            max_offset=ends.get(name),
        )


class _OffsetsAt(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """OffsetWrapper, as `bodies` has it, without a step of Python for each of ten thousands."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    last_timestamp_ms: Int64 = 0


class _QuotedStats(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """ConsumeStats whose keys are texts: the queue id, '@', the topic."""

    offset_table: dict[str, _OffsetsAt] = {}


class _QuotedStatsList(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """ConsumeStatsList of such."""

    consume_stats_list: list[dict[str, list[_QuotedStats]]] = []


# A queue as a key, as fastjson writes it. No text of JSON can hold this: its quotes are escaped.
_QUEUE_AS_KEY = re.compile(
    rb'\{"brokerName":"[^"\\]*","queueId":([0-9]{1,10}),"topic":"([^"\\@]*)"\}:'
)
_decode_quoted = msgspec.json.Decoder(_QuotedStatsList).decode


def read_progress(reply: RemotingCommand, address: str) -> dict[str, list[TopicProgress]]:
    """Read how far each group is in each of its topics, from a broker's GET_BROKER_CONSUME_STATS.

    Most of the time goes into keys that are objects, which no JSON reader takes. Made texts first,
    2,300 groups of 16 queues are read in 0.1 s instead of 0.9 s.

    Raises: RemoteProtocolError, which names the address.
    """
    quoted = _QUEUE_AS_KEY.sub(rb'"\1@\2":', reply.body or b"{}")
    found: dict[str, list[TopicProgress]] = {}
    try:
        for groups in _decode_quoted(quoted).consume_stats_list:
            for group, tables in groups.items():
                found[group] = [
                    _sum_up(next(iter(t.offset_table)).partition("@")[2], t.offset_table.values())
                    for t in tables
                    if t.offset_table
                ]
        return found
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # It is written in another way: the reader that takes all of them says what is wrong, too.
        found.clear()
    answer = decode_answer(
        ConsumeStatsList, reply, address, absent=b"{}", bytes_max=FRAME_BYTES_MAX
    )
    for stats_of in answer.consume_stats_list:
        for group, stats in stats_of.items():
            found[group] = [
                _sum_up(next(iter(each.offset_table)).topic, each.offset_table.values())
                for each in stats
                if each.offset_table
            ]
    return found


def _sum_up(topic: str, queues: Collection[_OffsetsAt | OffsetWrapper]) -> TopicProgress:
    lags = [max(0, at.broker_offset - (at.consumer_offset or 0)) for at in queues]
    behind = [
        at.last_timestamp_ms
        for at, lag in zip(queues, lags, strict=True)
        if lag and at.last_timestamp_ms
    ]
    return TopicProgress(
        topic=topic,
        queue_count=len(lags),
        max_offset=sum(at.broker_offset for at in queues),
        committed_offset=sum(at.consumer_offset or 0 for at in queues),
        lag=sum(lags),
        queue_lag_max=max(lags),
        last_timestamp_ms=min(behind, default=None),
    )


def _first_number(text: str) -> float | None:
    """Return the first of the numbers in a text, such as the last ten seconds' of `putTps`."""
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return None
