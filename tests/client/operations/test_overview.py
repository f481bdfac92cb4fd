"""A cluster at a glance: what is found, and how few requests it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from play import Handler, Play
from sparrowmq import AsyncAdmin, MessageQueue, Producer
from sparrowmq.calling.effects import Operation
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations import offsets, overview
from sparrowmq.client.operations.overview import GroupOverview, Overview, TopicProgress
from sparrowmq.client.operations.waiting_messages import TOPICS_ASKED_MAX
from sparrowmq.errors import ConnectFailed
from sparrowmq.model import Message
from sparrowmq.model.consuming import MessageModel
from sparrowmq.protocol.bodies import (
    BrokerData,
    ClientConnection,
    ClusterInfo,
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    KVTable,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    SubscriptionData,
    TopicConfig,
    TopicConfigTable,
    TopicOffset,
    TopicStatsTable,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    decode_header,
)
from sparrowmq.testing.embedded import EmbeddedCluster

Run = Callable[[Operation[Any]], Any]
BROKERS = {"broker-a": "10.0.0.1:10911", "broker-b": "10.0.0.2:10911"}
# What one refresh may ask a broker, however many topics and groups there are.
REQUESTS_MAX = 30


def stats_of(
    groups: dict[str, dict[str, list[tuple[int, int, int]]]], broker: str
) -> ConsumeStatsList:
    """Make an answer of `group: topic: [(end, committed, time), ...]`."""
    return ConsumeStatsList(
        consume_stats_list=[
            {
                group: [
                    ConsumeStats(
                        offset_table={
                            MessageQueue(topic, broker, number): OffsetWrapper(
                                broker_offset=end, consumer_offset=done, last_timestamp_ms=at_ms
                            )
                            for number, (end, done, at_ms) in enumerate(queues)
                        }
                    )
                    for topic, queues in topics.items()
                ]
            }
            for group, topics in groups.items()
        ]
    )


def servers(
    stats: dict[str, ConsumeStatsList],
    *,
    topics: list[str],
    members: dict[str, list[str]],
    silent: str = "",
    waits: dict[tuple[str, str, str], list[tuple[int, int]]] | None = None,
    reads: dict[str, list[str]] | None = None,
    broadcasting: Collection[str] = (),
) -> Handler:
    """Answer as a name server and the brokers of `stats`.

    Args:
        waits: by broker, group and topic: of each queue the store time of its first message, and
            the time that the first unconsumed one has waited.
        reads: the topics that each group's members subscribe to.
        broadcasting: the groups whose members consume in BROADCASTING.
    """
    info = ClusterInfo(
        broker_addr_table={
            name: BrokerData(cluster="c1", broker_name=name, broker_addrs={0: BROKERS[name]})
            for name in stats
        },
        cluster_addr_table={"c1": list(stats)},
    )
    names = {address: name for name, address in BROKERS.items()}

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return response_to(request, body=encode_body(info))
        if names[address] == silent:
            raise ConnectFailed("nobody there", address=address)
        if request.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = {"brokerVersionDesc": "V4_9_7", "putTps": "7.5 6.0 5.0"}
            return response_to(request, body=encode_body(KVTable(table=table)))
        if request.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            configs = {
                t: TopicConfig(topic_name=t, read_queue_nums=4, write_queue_nums=4) for t in topics
            }
            return response_to(
                request, body=encode_body(TopicConfigTable(topic_config_table=configs))
            )
        if request.code == RequestCode.GET_BROKER_CONSUME_STATS:
            return response_to(request, body=encode_body(stats[names[address]]))
        if request.code == RequestCode.GET_TOPIC_STATS_INFO:
            topic = decode_header(GetTopicStatsInfoRequestHeader, request.ext_fields).topic
            queue, bounds = MessageQueue(topic, names[address], 0), (2, 5)
            offset = TopicOffset(min_offset=bounds[0], max_offset=bounds[1])
            return response_to(
                request, body=encode_body(TopicStatsTable(offset_table={queue: offset}))
            )
        if request.code == RequestCode.QUERY_CONSUME_TIME_SPAN:
            asked = decode_header(QueryConsumeTimeSpanRequestHeader, request.ext_fields)
            spans = (waits or {}).get((names[address], asked.group, asked.topic), [])
            body = QueryConsumeTimeSpanBody(
                consume_time_span_set=[
                    QueueTimeSpan(
                        message_queue=MessageQueue(asked.topic, names[address], number),
                        min_timestamp_ms=first_ms,
                        delay_time_ms=delay_ms,
                    )
                    for number, (first_ms, delay_ms) in enumerate(spans)
                ]
            )
            return response_to(request, body=encode_body(body))
        assert request.code == RequestCode.GET_CONSUMER_CONNECTION_LIST
        group = decode_header(
            GetConsumerConnectionListRequestHeader, request.ext_fields
        ).consumer_group
        connections = ConsumerConnection(
            connection_set=[ClientConnection(client_id=each) for each in members.get(group, [])],
            subscription_table={t: SubscriptionData(topic=t) for t in (reads or {}).get(group, [])},
            message_model=MessageModel.BROADCASTING
            if group in broadcasting
            else MessageModel.CLUSTERING,
        )
        return response_to(request, body=encode_body(connections))

    return answer


def take(play: Play, **options: Any) -> Overview:
    directory = make_directory("10.0.0.9:9876", timeout_ms=3_000)
    return play(overview.take_overview(directory, **options))


def test_groups_are_added_up_over_brokers_and_the_neediest_come_first() -> None:
    progress = {
        "broker-a": {
            "GID_idle": {"t1": [(10, 10, 5_000)]},
            "GID_far": {"t1": [(500, 100, 7_000), (10, 10, 1_000)], "%RETRY%GID_far": [(3, 1, 9)]},
            "GID_gone": {"t2": [(10, 5, 0)]},
            "GID_new": {},
            "GID_twins": {"t2": [(10, 9, 2_000)]},
            "TOOLS_CONSUMER": {"t2": [(10, 9, 2_000)]},
        },
        "broker-b": {"GID_far": {"t1": [(50, 20, 3_000)]}},
    }
    retries = ["%RETRY%GID_far", "%RETRY%GID_gone"]
    play = Play(
        servers(
            {name: stats_of(groups, name) for name, groups in progress.items()},
            topics=["t1", "t2", *retries, "TBW102", "c1_REPLY_TOPIC"],
            members={"GID_idle": ["a"], "GID_far": ["b", "a"], "GID_twins": ["x", "x", "y"]},
            waits={("broker-b", "GID_gone", "%RETRY%GID_gone"): [(0, 90_000)]},
        )
    )

    seen = take(play)

    names = ["GID_twins", "GID_gone", "GID_far", "GID_idle", "GID_new"]
    assert names == [g.group for g in seen.groups]
    twins, gone, far, idle, new = seen.groups
    assert [g.known_lag for g in (twins, gone, far, idle, new)] == [1, 11, 432, 0, None]
    assert (twins.duplicate_ids, far.duplicate_ids) == (("x",), ())
    # At each broker three failed messages wait, where the group has committed nothing.
    assert (gone.members, gone.retry_lag, gone.lag) == ((), 6, 11)
    waiting = overview.WaitingMessage(90_000, MessageQueue("%RETRY%GID_gone", "broker-b", 0))
    assert gone.oldest_waiting == waiting
    assert (far.retry_lag, far.lag, far.members) == (2, 432, ("a", "b"))
    assert far.topics == (TopicProgress("t1", 3, 560, 130, 430, 400, 3_000),)
    assert idle.topics[0].last_timestamp_ms is None
    internal = [*retries, "TBW102", "c1_REPLY_TOPIC"]
    assert [*internal, "t1", "t2"] == [t.topic for t in seen.topics]
    assert internal == [t.topic for t in seen.topics if t.is_internal]
    t1 = seen.topics[4]
    assert (t1.queue_count, t1.groups, t1.max_offset) == (8, ("GID_far", "GID_idle"), 560)
    first = seen.brokers[0]
    assert (
        first.name,
        first.cluster,
        first.version,
        first.puts_per_s,
    ) == ("broker-a", "c1", "4.9.7", 7.5)


def test_a_broker_that_does_not_answer_is_noted() -> None:
    stats = {name: stats_of({"G": {"t": [(9, 4, 1)]}}, name) for name in BROKERS}
    play = Play(servers(stats, topics=["t"], members={"G": ["a"]}, silent="broker-a"))

    seen = take(play)

    assert [broker.failure for broker in seen.brokers] == ["nobody there", ""]
    assert (seen.groups[0].lag, seen.groups[0].members) == (5, ("a",))


@pytest.mark.parametrize("broker_lead_ms", [0, -5, -60_000, 60_000])
def test_the_message_that_waits_longest_is_found_by_few_requests(broker_lead_ms: int) -> None:
    now_ms = 1_700_000_000_000
    broker_ms = now_ms + broker_lead_ms
    minutes = 60_000
    groups = {
        "GID_late": {"t1": [(9, 4, now_ms - 90 * minutes)], "%RETRY%GID_late": [(2, 1, 0)]},
        # What was consumed last was stored a moment ago, so that nothing can have waited.
        "GID_works": {"t1": [(9, 4, now_ms - 1_000)]},
        "GID_done": {"t1": [(9, 9, 5_000)]},
        "GID_expired": {"t2": [(9, 4, 0)]},
        "GID_wide": {f"w{number}": [(9, 4, 7_000 + number)] for number in range(9)},
    }
    waits = {
        ("broker-a", "GID_late", "t1"): [(1, 0), (1, 12 * minutes)],
        ("broker-b", "GID_late", "t1"): [(1, 3 * minutes)],
        ("broker-a", "GID_late", "%RETRY%GID_late"): [(1, 2 * minutes)],
        # An answer takes its time, and clocks differ.
        ("broker-a", "GID_expired", "t2"): [
            (broker_ms - 20 * minutes, broker_ms + 1),
            (-1, broker_ms + 1),
        ],
    }
    stats = {name: stats_of(groups, name) for name in BROKERS}
    topics = ["t1", "t2", "%RETRY%GID_late", *groups["GID_wide"]]
    play = Play(servers(stats, topics=topics, members={}, waits=waits))
    play.now_ms = now_ms

    seen = take(play)

    found = {each.group: each.oldest_waiting for each in seen.groups}
    assert found == {
        "GID_late": (12 * minutes, MessageQueue("t1", "broker-a", 1)),
        "GID_expired": (20 * minutes, MessageQueue("t2", "broker-a", 0)),
        "GID_works": None,
        "GID_done": None,
        "GID_wide": None,
    }
    assert [each.group for each in seen.groups if each.is_late] == ["GID_late", "GID_expired"]
    asked = Counter(
        decode_header(QueryConsumeTimeSpanRequestHeader, request.ext_fields).group
        for _, request in play.requests
        if request.code == RequestCode.QUERY_CONSUME_TIME_SPAN
    )
    each = len(BROKERS)
    assert asked == {
        "GID_late": 2 * each,
        "GID_expired": each,
        "GID_wide": TOPICS_ASKED_MAX * each,
    }


def test_a_clock_that_is_behind_hides_no_message_that_waits() -> None:
    now_ms = 1_700_000_000_000
    # By the broker's clock, which is 5 minutes ahead, the last one was consumed 2 minutes ago.
    groups = {"G": {"t": [(9, 4, now_ms + 3 * 60_000)]}}
    waits = {("broker-a", "G", "t"): [(1, 2 * 60_000)]}
    stats = {"broker-a": stats_of(groups, "broker-a")}
    play = Play(servers(stats, topics=["t"], members={"G": ["a"]}, waits=waits))
    play.now_ms = now_ms

    (seen,) = take(play).groups

    assert seen.oldest_waiting == (2 * 60_000, MessageQueue("t", "broker-a", 0))


def test_thousands_of_groups_take_as_few_requests_as_one() -> None:
    groups = {
        f"GID_{number:04d}": {f"t{number % 900}": [(100 + number, 90, 1_000)] * 8}
        for number in range(2_300)
    }
    stats = {name: stats_of(groups, name) for name in BROKERS}
    ids = [f"10.1.0.{number}@1" for number in range(20)]
    topics = [f"t{number}" for number in range(900)]
    play = Play(servers(stats, topics=topics, members=dict.fromkeys(groups, ids)))

    seen = take(play, asked_first=["GID_0001"])

    per_broker = Counter(address for address, _ in play.requests)
    assert [a for a in BROKERS.values() if per_broker[a] > REQUESTS_MAX] == []
    assert (len(seen.groups), len(seen.topics)) == (2_300, 900)
    asked = [group.group for group in seen.groups if group.members is not None]
    assert len(asked) == overview.GROUPS_ASKED_MAX
    assert {"GID_0001", "GID_2299", "GID_2298"} <= set(asked)
    assert seen.groups[0].lag == 2 * 8 * (2_299 + 10)


def test_an_overview_of_groups_that_are_all_late_takes_as_many_requests_as_is_said() -> None:
    groups = {
        f"GID_{number}": {f"t{number}_{topic}": [(9, 4, 7_000 + topic)] for topic in range(9)}
        for number in range(2 * overview.GROUPS_ASKED_MAX)
    }
    stats = {name: stats_of(groups, name) for name in BROKERS}
    topics = [topic for each in groups.values() for topic in each]
    dead = [f"%DLQ%{group}" for group in groups]
    new = [f"new{number}" for number in range(9)]
    members, reads = {group: ["a"] for group in groups}, dict.fromkeys(groups, new)
    play = Play(
        servers(stats, topics=[*topics, *dead, *new], members=members, waits={}, reads=reads)
    )
    play.now_ms = 1_700_000_000_000

    take(play)

    per_broker = Counter(address for address, _ in play.requests)
    most = max(per_broker[address] for address in BROKERS.values())
    assert f"at most {most} requests a broker" in (AsyncAdmin.overview.__doc__ or "")
    # The page asks for the names of all groups too.
    page = Path(__file__).parents[3] / "docs/howto/live-page.md"
    assert f"at most {most + 1} requests" in page.read_text()


def test_what_members_read_and_have_not_committed_is_behind() -> None:
    """A broker counts a topic only where the group has an offset."""
    stats = {
        "broker-a": stats_of({"GID_stuck": {}, "GID_half": {"t1": [(10, 4, 7_000)]}}, "broker-a"),
        "broker-b": stats_of({"GID_stuck": {}, "GID_half": {}}, "broker-b"),
    }
    reads = {"GID_stuck": ["t1", "%RETRY%GID_stuck"], "GID_half": ["t1", "t2", "elsewhere"]}
    play = Play(
        servers(
            stats,
            topics=["t1", "t2", "%RETRY%GID_stuck"],
            members={"GID_stuck": ["a"], "GID_half": ["b"]},
            waits={("broker-b", "GID_stuck", "t1"): [(1, 90_000)]},
            reads=reads,
        )
    )

    seen = {group.group: group for group in take(play).groups}

    # Each broker has three messages of each topic.
    stuck, half = seen["GID_stuck"], seen["GID_half"]
    assert [(t.topic, t.lag) for t in stuck.topics] == [("t1", 6)]
    assert (stuck.known_lag, stuck.retry_lag) == (12, 6)
    assert stuck.oldest_waiting == (90_000, MessageQueue("t1", "broker-b", 0))
    assert [(t.topic, t.lag, t.max_offset) for t in half.topics] == [("t1", 9, 15), ("t2", 6, 10)]


def test_offsets_left_behind_say_nothing_of_a_group_that_broadcasts() -> None:
    groups = {"G": {"t": [(10, 4, 7_000)], "%RETRY%G": [(3, 1, 9)]}}
    play = Play(
        servers(
            {"broker-a": stats_of(groups, "broker-a")},
            topics=["t", "%RETRY%G"],
            members={"G": ["a"]},
            reads={"G": ["t"]},
            broadcasting=["G"],
        )
    )

    (seen,) = take(play).groups

    assert (seen.members, seen.known_lag, seen.oldest_waiting) == (("a",), None, None)


def test_a_list_of_all_groups_knows_every_groups_members_and_dead_letters() -> None:
    groups = {f"GID_{number:02d}": {"t": [(10, 9, 1)]} for number in range(30)}
    stats = {name: stats_of(groups, name) for name in BROKERS}
    topics = ["t", "%DLQ%GID_17"]

    def play() -> Play:
        return Play(servers(stats, topics=topics, members={name: ["a"] for name in groups}))

    some, every = take(play()), take(play(), asked_max=None)

    assert sum(group.members is not None for group in some.groups) == overview.GROUPS_ASKED_MAX
    assert [group.members for group in every.groups] == [("a",)] * 30
    assert {g.group: g.dead_letters for g in every.groups if g.dead_letters} == {"GID_17": 2 * 3}


@pytest.mark.parametrize("topic", ["plain", "%RETRY%|odd_-"])
def test_both_readers_of_progress_read_the_same(topic: str) -> None:
    body = encode_body(
        stats_of({"A": {topic: [(5, 2, 3), (9, 9, 4)], "u": [(1, 0, 0)]}, "B": {}}, "b")
    )
    # Java's next JSON writer might have blanks between, which are as good.
    other = body.replace(b'"queueId":', b'"queueId": ')
    assert body != other

    one, two = (
        overview.read_progress(RemotingCommand(code=0, body=each), "b:1") for each in (body, other)
    )

    assert one == two
    assert one == (
        {
            "A": [
                TopicProgress(topic, 2, 14, 11, 3, 3, 3),
                TopicProgress("u", 1, 1, 0, 1, 1, 0),
            ],
            "B": [],
        },
        frozenset(),
    )


def test_flows_are_those_between_two_looks() -> None:
    def look(at_ms: int, end: int, done: int) -> Overview:
        progress = TopicProgress("t", 1, end, done, end - done, end - done, None)
        group = GroupOverview(group="G", topics=(progress,))
        topic = overview.TopicOverview(topic="t", places=(), ends_at={"a": end})
        return Overview(
            at_ms=at_ms, timestamp_ms=at_ms, brokers=(), topics=(topic,), groups=(group,)
        )

    before, after = look(1_000, 10, 0), look(3_000, 50, 10)

    assert overview.group_flows(before, after) == {"G": (20.0, 5.0, 0.0)}
    assert overview.topic_rates(before, after) == {"t": 20.0}
    assert overview.group_flows(before, look(1_100, 50, 10)) == {}
    # The topic was made anew, or the group reset: nothing flows backwards.
    assert overview.group_flows(after, look(5_000, 4, 2)) == {"G": (0.0, 0.0, 0.0)}
    assert overview.topic_rates(after, look(5_000, 4, 2)) == {"t": 0.0}


def test_a_broker_that_comes_or_goes_makes_no_rates() -> None:
    def look(at_ms: int, *names: str, silent: str = "") -> Overview:
        stats = {name: stats_of({"G": {"t": [(900, 400, 1)]}}, name) for name in names}
        seen = take(Play(servers(stats, topics=["t"], members={}, silent=silent)))
        return replace(seen, at_ms=at_ms)

    both = look(1_000, "broker-a", "broker-b")

    for fewer in (look(3_000, "broker-a", "broker-b", silent="broker-b"), look(3_000, "broker-a")):
        assert sum(topic.max_offset or 0 for topic in fewer.topics) == 900
        assert not overview.group_flows(both, fewer)
        assert not overview.topic_rates(both, fewer)
        later = replace(both, at_ms=5_000)
        assert not overview.group_flows(fewer, later)
        assert not overview.topic_rates(fewer, later)
        assert overview.topic_rates(both, later) == {"t": 0.0}


def test_a_real_cluster_at_a_glance(
    run: Run, cluster: EmbeddedCluster, topic: str, group: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 1)
    with Producer("GID_overview", name_server=cluster.name_server) as producer:
        for _ in range(5):
            producer.send(Message(topic, b"x"), queue=queue)
    run(offsets.update_offset(cluster.broker, group, queue=queue, offset=2))
    directory = make_directory(cluster.name_server, timeout_ms=3_000)

    seen = run(overview.take_overview(directory, asked_first=[group]))

    found = next(each for each in seen.groups if each.group == group)
    assert (found.lag, found.members, found.topics[0].queue_count) == (3, (), 8)
    assert group in next(each for each in seen.topics if each.topic == topic).groups
    assert [broker.version for broker in seen.brokers] == ["4.9.3"]
