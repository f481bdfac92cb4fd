"""The doctor's rules on ids, lists of members and subscriptions: each fires, and each is silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from processor_time import takes_less_than
from sparrowmq.coordination.member_marker import mark_version
from sparrowmq.doctor import Severity, compute_ownership, diagnose
from sparrowmq.doctor.explain import explain
from sparrowmq.doctor.group_snapshot import PlanSnapshot, TopicPace, TopicSnapshot
from sparrowmq.doctor.group_view import examine
from sparrowmq.doctor.membership_rules import find_idle_members
from sparrowmq.model import MessageQueue

# What the fixture gives; a test directory is not a package to import from.
Group = Any


def queues(*ids: int, topic: str = "T", broker: str = "broker-a") -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, broker, queue_id) for queue_id in ids)


@pytest.mark.parametrize("broker", ["broker-a", "broker-b"])
def test_r01_counts_where_most_processes_with_the_id_are_listed(
    seen_group: Group, broker: str
) -> None:
    shared = "172.17.0.1@9"
    group = seen_group([shared] * 2, brokers=("broker-a", "broker-b"))
    group.listing(broker, [shared] * 3)

    found = group.findings()["R01"]

    assert found.evidence[0].startswith(f"{shared} is listed 3 times: ")


def test_broker_that_comes_between_the_looks_changes_no_member(seen_group: Group) -> None:
    group = seen_group(brokers=("broker-a", "broker-b"))
    del group.then["broker-b"]

    assert group.findings() == {}


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_healthy_group_has_no_finding(seen_group: Group, strategy: str) -> None:
    group = seen_group([f"10.0.0.{n}@1" for n in range(3)], queues=9, strategy=strategy)

    findings = group.findings()

    # A hash ring may give unequal shares, which is R14 at most; what dealing in a circle costs
    # when members change is worth knowing.
    usual = {"CONSISTENT_HASH": {"R14"}, "AVG_BY_CIRCLE": {"R18"}}
    assert findings.keys() <= usual.get(strategy, set())


def test_r01_names_the_containers_that_share_an_id_and_the_queues_it_costs(
    seen_group: Group,
) -> None:
    group = seen_group(["172.17.0.1@11", "172.17.0.1@9", "172.17.0.1@9"], queues=8)
    group.flow(6, 7, then=(100, 0), now=(160, 0))

    found = group.findings()["R01"]

    assert found.severity == Severity.ERROR
    assert queues(6, 7) == found.unowned
    assert queues(3, 4, 5) == found.double
    assert found.members == ("172.17.0.1@9",)
    assert found.evidence == (
        "172.17.0.1@9 is listed 2 times: connections from 10.1.0.1:50001, 10.1.0.2:50002",
        "on a member's host, `ss -tnp sport = :50001` names the process of that connection",
    )
    assert [command.write(()) for command in found.commands] == [
        "sparrowmq rebalance show G --interval 6"
    ]
    assert "nobody consumes T at broker-a: 6, 7" in found.consequence
    assert "320 messages behind, growing by 20 a second" in found.consequence
    assert "consume T at broker-a: 3-5: every message twice" in found.consequence
    assert "instance name" in found.remedy


@pytest.mark.parametrize("host", ["10.0.0.5", "172.17.0.5"])
def test_r02_is_the_same_on_one_host(seen_group: Group, host: str) -> None:
    twice = [f"{host}@DEFAULT"] * 2
    group = seen_group(twice, queues=4)
    group.listing("broker-a", twice, addresses=[f"{host}:41", f"{host}:42"])

    findings = group.findings()

    assert "R01" not in findings
    assert queues(0, 1) == findings["R02"].double
    assert queues(2, 3) == findings["R02"].unowned


def test_an_id_costs_no_queue_that_has_an_owner_or_that_another_id_costs(
    seen_group: Group,
) -> None:
    ring = seen_group(["10.0.0.1@1", "10.0.0.1@1", "10.0.0.2@1"], queues=16)
    ring.strategy = "CONSISTENT_HASH"
    ids = [*["10.0.0.1@1"] * 2, *["10.0.0.2@1"] * 2]
    group = seen_group(ids)
    group.listing(
        "broker-a", ids, addresses=["10.8.0.1:1", "10.8.0.2:1", "10.8.0.3:1", "10.8.0.3:2"]
    )

    found = group.findings()

    assert ring.findings()["R01"].unowned == ()
    assert (found["R01"].unowned, found["R02"].unowned) == (queues(1), queues(3))


def test_r01_counts_an_id_that_a_broker_lists_without_its_connections(seen_group: Group) -> None:
    group = seen_group(["10.0.0.1@1"] * 2)
    group.now["broker-a"] = replace(group.now["broker-a"], connections=())

    assert "connections from an unknown address" in group.findings()["R01"].evidence[0]


def test_r01_takes_shares_from_the_broker_that_lists_most_members(seen_group: Group) -> None:
    twin, other, last = "10.0.0.1@1", "10.0.0.2@1", "10.0.0.3@1"
    group = seen_group([twin, twin, other, last], brokers=("broker-a", "broker-b"), queues=4)
    # The last member's heartbeat has not come to this broker yet.
    group.listing("broker-a", [twin, twin, other])

    found = group.findings()["R01"]

    assert set(found.unowned) & set(found.double) == set()
    assert found.double == queues(0, 1)
    assert found.unowned == queues(2, 3)


def test_r01_is_a_warning_while_it_may_be_a_member_that_reconnects(seen_group: Group) -> None:
    group = seen_group()
    group.listing("broker-a", ["10.0.0.1@1"] * 2, before=["10.0.0.1@1"])

    found = group.findings()["R01"]

    assert found.severity == Severity.WARN
    assert "reconnecting" in found.evidence[-1]


def test_r01_says_how_often_messages_come_where_many_containers_share_an_id(
    seen_group: Group,
) -> None:
    group = seen_group(["172.17.0.1@1"] * 8, queues=16)

    (told,) = explain(group.snapshot(), queues(15)[0])

    assert (
        "up to 8 processes consume T at broker-a: 0, 1: every message up to 8 times"
        in group.findings()["R01"].consequence
    )
    assert "all 8 processes take the share of place 0" in told.steps[-2]


@pytest.mark.parametrize("topic", ["%RETRY%G", "T"])
def test_r04_tells_of_retries_that_double(seen_group: Group, topic: str) -> None:
    group = seen_group(["10.0.0.1@1"] * 2, topics=["%RETRY%G", "T"], queues=1)
    group.offsets = dict.fromkeys(group.offsets, ((0, 0), (0, 0)))
    group.flow(0, topic=topic, then=(10, 10), now=(40, 40))

    findings = group.findings()

    assert (topic == "%RETRY%G") == ("R04" in findings)
    if topic == "%RETRY%G":
        assert "the retry topic grows by 5.0 messages a second" in findings["R04"].evidence


def test_an_id_that_broadcasting_members_share_doubles_no_retries(seen_group: Group) -> None:
    group = seen_group(["10.0.0.1@1"] * 2, topics=["%RETRY%G", "T"], model="BROADCASTING")

    findings = group.findings()

    assert findings["R01"].severity == Severity.WARN
    assert "R04" not in findings


def test_r05_finds_topics_that_only_some_members_subscribe(seen_group: Group) -> None:
    group = seen_group(["10.0.0.1@1", "10.0.0.2@1"], topics=["T", "U"])
    group.report("10.0.0.1@1", expressions={"T": "*"}, held=queues(0, 1))
    group.report("10.0.0.2@1", expressions={"U": "*"}, held=queues(2, 3, topic="U"))
    group.flow(2, 3, then=(10, 0), now=(40, 0))

    findings = group.findings()

    assert findings["R05"].severity == Severity.ERROR
    assert {*queues(2, 3), *queues(0, 1, topic="U")} == set(findings["R05"].unowned)
    assert "member 10.0.0.1@1: T" in findings["R05"].evidence
    assert "member 10.0.0.2@1: U" in findings["R05"].evidence
    assert "growing by 10 a second" in findings["R05"].consequence
    assert "R10" not in findings


def test_r05_leaves_out_the_queues_of_a_topic_that_nobody_subscribes(seen_group: Group) -> None:
    group = seen_group(["10.0.0.1@1"], topics=["T", "U", "V"])
    group.listing("broker-a", ["10.0.0.1@1"], expressions={"T": "*", "U": "*"})
    group.report("10.0.0.1@1", expressions={"T": "*"}, held=queues(0, 1, 2, 3))

    assert group.findings()["R05"].unowned == queues(0, 1, 2, 3, topic="U")


def test_r05_finds_a_broker_whose_subscription_changes_between_the_looks(
    seen_group: Group,
) -> None:
    group = seen_group(topics=["T", "U"])
    group.listing(
        "broker-a",
        ["10.0.0.1@1", "10.0.0.2@1"],
        expressions={"T": "*"},
        expressions_before={"U": "*"},
    )

    assert set(group.findings()["R05"].evidence) == {
        "broker broker-a: T",
        "broker broker-a a moment ago: U",
    }


def test_r06_finds_different_tags_and_not_tags_in_another_order(seen_group: Group) -> None:
    group = seen_group()
    group.listing("broker-a", ["10.0.0.1@1", "10.0.0.2@1"], expressions={"T": "A||B"})
    group.report("10.0.0.1@1", expressions={"T": "B || A"}, held=queues(0, 1))
    group.report("10.0.0.2@1", expressions={"T": "A||B"}, held=queues(2, 3))
    assert group.findings() == {}

    group.reports.pop()
    group.report("10.0.0.2@1", expressions={"T": "C"}, held=queues(2, 3))

    found = group.findings()["R06"]
    assert "member 10.0.0.2@1: C" in found.evidence
    assert "skipped for good" in found.consequence
    # No expression selects all.
    group = seen_group(["10.0.0.1@1"])
    group.report("10.0.0.1@1", expressions={"T": ""}, held=queues(0, 1, 2, 3))
    assert group.findings() == {}


@pytest.mark.parametrize(("member", "fires"), [(2, True), (1, False), (0, False)])
def test_r07_finds_a_broker_that_knows_an_older_subscription(
    seen_group: Group, member: int, fires: bool
) -> None:
    group = seen_group(["10.0.0.1@1"])
    group.report("10.0.0.1@1", versions=member, held=queues(0, 1, 2, 3))

    assert fires == ("R07" in group.findings())


def test_r08_finds_a_broker_that_lists_nobody_and_r09_one_that_misses_a_member(
    seen_group: Group,
) -> None:
    brokers = ["broker-a", "broker-b"]
    everybody = ["10.0.0.1@1", "10.0.0.2@1"]
    assert seen_group(everybody, brokers=brokers).findings() == {}

    restarted = seen_group(everybody, brokers=brokers)
    restarted.listing("broker-b", [])
    split = seen_group(everybody, brokers=brokers)
    split.listing("broker-b", everybody[:1])

    found = restarted.findings()["R08"]
    assert "broker-b at 10.9.9.9:10911 lists no member" in found.evidence
    assert "R09" not in restarted.findings()
    found = split.findings()["R09"]
    assert found.severity == Severity.ERROR
    assert found.members == ("10.0.0.2@1",)
    assert "missing there: 10.0.0.2@1" in found.evidence
    assert "R08" not in split.findings()


def test_r09_names_no_queue_if_the_missing_member_has_none(seen_group: Group) -> None:
    everybody = [f"10.0.0.{number}@1" for number in range(1, 10)]
    group = seen_group(everybody, brokers=["broker-a", "broker-b"])
    group.listing("broker-b", everybody[:-1])

    found = group.findings()["R09"]

    assert found.severity == Severity.WARN
    assert "leaves queues with no owner or two" in found.consequence
    assert "none may have" not in found.consequence


def test_broker_that_does_not_answer_is_q03_and_not_r08(seen_group: Group) -> None:
    group = seen_group(brokers=["broker-a", "broker-b"])
    group.listing("broker-b", [], failure="cannot connect")

    findings = group.findings()

    assert findings.keys() == {"Q03"}
    assert findings["Q03"].evidence == ("10.9.9.9:10911: cannot connect",)


def test_r12_finds_a_member_that_unsubscribed_everything(seen_group: Group) -> None:
    group = seen_group(["10.0.0.1@1", "10.0.0.2@1"], topics=["%RETRY%G", "T"])
    group.report("10.0.0.1@1", expressions={"%RETRY%G": "*"})
    group.report("10.0.0.2@1", held=queues(2, 3))
    group.flow(0, then=(0, 0), now=(60, 0))

    found = group.findings()["R12"]

    assert queues(0, 1) == found.unowned
    assert "T at broker-a: 0, 1 (60 messages behind" in found.consequence
    assert "R05" not in group.findings()

    silent = group.reports[0]
    for told in (
        replace(silent, subscriptions=group.reports[1].subscriptions),
        # Some clients never report what they subscribe.
        replace(silent, held=(group.reports[1].held[0]._replace(queue=queues(0)[0]),)),
        # This one has left.
        replace(silent, client_id="10.0.0.3@1"),
    ):
        group.reports[0] = told
        assert "R12" not in group.findings()


@pytest.mark.parametrize(("member_count", "idle"), [(4, []), (6, ["10.0.0.5@1", "10.0.0.6@1"])])
def test_r14_names_members_without_a_queue(
    seen_group: Group, member_count: int, idle: list[str]
) -> None:
    group = seen_group([f"10.0.0.{n + 1}@1" for n in range(member_count)])

    found = group.findings().get("R14")

    assert idle == ([] if found is None else list(found.members))


def test_r14_leaves_a_member_alone_whose_queues_nobody_knows(seen_group: Group) -> None:
    group = seen_group(["10.0.0.1@1", "10.0.0.2@1"], strategy="CONFIG")
    group.report("10.0.0.1@1", held=queues(0, 1))

    assert "R14" not in group.findings()

    group.report("10.0.0.2@1")
    assert group.findings()["R14"].members == ("10.0.0.2@1",)


def test_r14_leaves_a_member_to_its_plan_that_gave_the_queues_to_quicker_ones(
    seen_group: Group,
) -> None:
    group = seen_group(["10.0.0.1@1", "10.0.0.2@1"], queues=2, strategy="AVG_BY_LOAD")
    owners = tuple((queue, "10.0.0.2@1") for queue in queues(0, 1))
    plan = PlanSnapshot(epoch=1, owners=owners, client_ids=("10.0.0.1@1", "10.0.0.2@1"))

    view = examine(replace(group.snapshot(), plan=plan))

    assert [len(view.owned_by(client_id)) for client_id in view.members] == [0, 2]
    assert list(find_idle_members(view)) == []


def test_r19_tells_who_came_and_went(seen_group: Group) -> None:
    group = seen_group()
    group.listing("broker-a", ["10.0.0.1@1", "10.0.0.3@1"], before=["10.0.0.1@1", "10.0.0.2@1"])

    found = group.findings()["R19"]

    assert found.evidence == ("joined: 10.0.0.3@1", "left: 10.0.0.2@1")
    assert found.severity == Severity.INFO
    assert "R19" not in seen_group().findings()


@pytest.mark.parametrize("silent", ["then", "now"])
def test_broker_that_answers_one_look_alone_changes_no_member(
    seen_group: Group, silent: str
) -> None:
    group = seen_group()
    views = getattr(group, silent)
    missing = replace(views["broker-a"], cid_all=None, connections=(), failure="no answer")
    views["broker-a"] = missing

    assert group.findings().keys() == ({"Q03"} if silent == "now" else set())


@pytest.mark.parametrize("topic", ["T", "%RETRY%G"])
def test_r19_tells_what_is_handed_over_but_no_retries(seen_group: Group, topic: str) -> None:
    group = seen_group(["10.0.0.1@1"], topics=["T", "%RETRY%G"])
    group.report("10.0.0.1@1", held=queues(0, topic=topic))
    drained = group.reports[0].held[0]._replace(is_dropped=True)
    group.reports[0] = replace(group.reports[0], held=(drained,))

    found = group.findings().get("R19")

    assert (found is not None) is (topic == "T")
    if found is not None:
        assert found.evidence[-1] == "handed over now: T at broker-a: 0"


def test_r28_finds_a_member_that_is_listed_and_frozen(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, 1, then=(100, 50), now=(160, 50))
    group.flow(2, 3, then=(100, 100), now=(160, 160))
    found = group.findings()["R28"]
    assert found.severity == Severity.WARN

    group.report("10.0.0.1@1", is_silent=True, failure="no answer")
    found = group.findings()["R28"]

    assert found.severity == Severity.ERROR
    assert found.members == ("10.0.0.1@1",)
    assert queues(0, 1) == found.unowned
    assert "220 messages behind, growing by 20 a second" in found.consequence
    assert any("does not answer" in line for line in found.evidence)


def test_r28_leaves_a_member_alone_that_has_consumed_all_of_another_queue(
    seen_group: Group,
) -> None:
    group = seen_group()
    group.flow(0, then=(100, 100), now=(130, 130))
    group.flow(1, then=(100, 50), now=(110, 50))
    group.flow(2, 3, then=(100, 100), now=(160, 160))

    assert group.findings().keys() == {"R30"}


def test_r28_is_found_though_a_queue_has_its_first_messages_since(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, then=(100, 50), now=(160, 50))
    group.flow(1, then=(100, 100), now=(103, 100))
    group.flow(2, 3, then=(100, 100), now=(160, 160))

    found = group.findings()

    assert found.keys() == {"R28"}
    assert (found["R28"].members, found["R28"].unowned) == (("10.0.0.1@1",), queues(0))


def test_r28_finds_a_silent_member_of_a_group_that_filters(seen_group: Group) -> None:
    group = seen_group()
    group.listing("broker-a", ["10.0.0.1@1", "10.0.0.2@1"], expressions={"T": "A"})
    group.flow(0, 1, then=(300, 100), now=(300, 100))
    group.report("10.0.0.1@1", expressions={"T": "A"}, is_silent=True, failure="no answer")

    found = group.findings()["R28"]

    assert (found.members, found.unowned) == (("10.0.0.1@1",), queues(0, 1))
    # What has just come counts too: a silent member may have consumed none of it.
    group.flow(0, 1, then=(100, 100), now=(160, 100))
    assert group.findings()["R28"].unowned == queues(0, 1)


def test_r28_leaves_a_member_alone_that_hands_a_queue_over(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, 1, then=(300, 100), now=(300, 100))
    group.flow(2, 3, then=(300, 100), now=(400, 400))
    assert group.findings()["R28"].members == ("10.0.0.1@1",)

    group.report("10.0.0.1@1", held=queues(0, 1))
    drained = group.reports[0].held[0]._replace(is_dropped=True)
    group.reports[0] = replace(group.reports[0], held=(drained, group.reports[0].held[1]))

    assert "R28" not in group.findings()


def test_r28_leaves_calls_alone_that_last_longer_than_the_look(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, then=(102, 100), now=(102, 100))
    group.flow(2, 3, then=(100, 100), now=(101, 101))
    assert group.findings().keys() == {"R28"}

    for client_id, held in (("10.0.0.1@1", queues(0, 1)), ("10.0.0.2@1", queues(2, 3))):
        group.report(client_id, held=held, paces=(TopicPace("T", 9_000.0, 0.2),))

    assert group.findings() == {}


def test_r28_leaves_a_member_alone_that_has_just_come(seen_group: Group) -> None:
    group = seen_group()
    group.listing("broker-a", ["10.0.0.1@1", "10.0.0.2@1"], before=["10.0.0.2@1"])
    group.flow(0, 1, then=(100, 50), now=(160, 50))
    group.flow(2, 3, then=(100, 100), now=(160, 160))

    assert "R28" not in group.findings()


def test_r28_waits_as_long_as_members_wait_to_commit(seen_group: Group) -> None:
    group = seen_group(interval_ms=3_000)
    group.flow(0, 1, then=(100, 50), now=(160, 50))
    group.flow(2, 3, then=(100, 100), now=(160, 160))

    assert group.findings() == {}


def test_r33_finds_two_clusters_and_name_servers_that_disagree(seen_group: Group) -> None:
    group = seen_group(brokers=["broker-a", "broker-b"])
    view: TopicSnapshot = group.topics["T"]
    here, there = view.queues
    group.topics["T"] = replace(view, queues=(here, there._replace(cluster="D")))
    found = group.findings()["R33"]
    assert "broker-b belongs to cluster D" in found.evidence
    # Some brokers do not say to which cluster they belong.
    group.topics["T"] = replace(view, queues=(here, there._replace(cluster="")))
    assert "R33" not in group.findings()

    disagreeing = (("ns1:9876", ("broker-a", "broker-b")), ("ns2:9876", ("broker-a",)))
    group.topics["T"] = replace(view, broker_names_by_server=disagreeing)

    found = group.findings()["R33"]
    assert found.severity == Severity.ERROR
    assert found.evidence == ("ns1:9876 knows broker-a, broker-b", "ns2:9876 knows broker-a")


def test_q04_tells_that_nobody_is_connected(seen_group: Group) -> None:
    group = seen_group([])
    group.flow(0, then=(0, 0), now=(60, 0))

    found = group.findings()["Q04"]

    assert found.severity == Severity.ERROR
    assert "60 messages behind, growing by 10 a second" in found.consequence
    assert queues(0, 1, 2, 3) == found.unowned


def test_q04_does_not_count_members_of_brokers_that_do_not_answer(seen_group: Group) -> None:
    group = seen_group([], brokers=["broker-a", "broker-b"])
    group.listing("broker-b", [], failure="no answer")
    group.flow(0, then=(0, 0), now=(60, 0))
    assert group.findings()["Q04"].evidence == ("asked 1 broker",)

    # At broker-a, which answers, the group has no queue.
    group.offsets.clear()

    assert group.findings().keys() == {"Q03"}


def test_q04_does_not_say_that_all_is_consumed_where_no_offset_is_known(seen_group: Group) -> None:
    group = seen_group([])
    group.offsets.clear()

    assert "all stored messages" not in group.findings()["Q04"].consequence


def test_q09_refuses_our_own_strategies_beside_other_clients(seen_group: Group) -> None:
    group = seen_group(strategy="MINIMAL_MOVE")
    view = group.now["broker-a"]
    ours, theirs = (c.client_id for c in view.connections)
    marked = view.connections[0]._replace(version=mark_version(395), language="PYTHON")
    group.now["broker-a"] = replace(view, connections=(marked, view.connections[1]))

    found = group.findings()["Q09"]

    assert found.severity == Severity.ERROR
    assert found.members == (ours, theirs)
    assert found.evidence == (f"{theirs} from 10.1.0.1:50001 runs another client (JAVA)",)
    both = (marked, view.connections[1]._replace(version=mark_version(395)))
    group.now["broker-a"] = replace(view, connections=both)
    assert "Q09" not in group.findings()
    assert "Q09" not in seen_group([ours, theirs]).findings()
    bounded = "CONSISTENT_HASH_BOUNDED"
    titles = [
        seen_group(strategy=name).findings()["Q09"].title
        for name in (bounded, f"{bounded} (own settings)")
    ]
    assert titles[0] == titles[1]


@pytest.mark.parametrize("strategy", ["MINIMAL_MOVE", "AVG_BY_LOAD", "CONSISTENT_HASH", "AVG"])
def test_a_large_group_is_examined_within_seconds(seen_group: Group, strategy: str) -> None:
    group = seen_group(
        [f"10.0.0.{n}@1" for n in range(40)],
        topics=[f"T{n}" for n in range(50)],
        brokers=["broker-a", "broker-b"],
        queues=8,
        strategy=strategy,
    )
    mine = [queue for topic in group.topics.values() for queue in topic.subscribe_queues]
    for n in range(40):
        group.report(f"10.0.0.{n}@1", held=mine[n::40])
    snapshot = group.snapshot()

    with takes_less_than(5):
        view = examine(snapshot)
        diagnose(snapshot)

    assert len(mine) == 800
    assert [view.queues[queue].owner_ids for queue in mine[:3]] == [
        ("10.0.0.0@1",),
        ("10.0.0.1@1",),
        ("10.0.0.2@1",),
    ]


def test_owners_are_computed_over_all_topics_by_a_strategy_that_sees_them(
    seen_group: Group,
) -> None:
    ids = ["10.0.0.1@1", "10.0.0.2@1", "10.0.0.3@1"]
    group = seen_group(ids, topics=["T", "U", "V"], queues=1, strategy="AVG_ACROSS_TOPICS")

    owners = compute_ownership(group.snapshot()).owners

    assert ids == sorted(c.client_id for connections in owners.values() for c in connections)


def test_queues_of_a_static_topic_are_owned_by_those_who_have_them(seen_group: Group) -> None:
    group = seen_group()
    static = queues(0, 1, 2, broker="__syslo__global__")
    view: TopicSnapshot = group.topics["T"]
    group.topics["T"] = replace(view, static_queues=static)
    for client_id, held in (("10.0.0.1@1", static[:2]), ("10.0.0.2@1", static[2:])):
        group.report(client_id, held=held, done=7)

    assert group.findings() == {}
    seen = examine(group.snapshot())
    assert {queue: each.owner_ids for queue, each in seen.queues.items()} == {
        static[0]: ("10.0.0.1@1",),
        static[1]: ("10.0.0.1@1",),
        static[2]: ("10.0.0.2@1",),
    }
    # Brokers report the offsets of their own queues.
    assert (seen.queues[static[0]].lag, seen.unowned) == (None, 0)
    (explained,) = explain(group.snapshot(), static[2])
    assert explained.owners == ("10.0.0.2@1",)


def test_minimal_move_leaves_queues_with_those_who_tell_that_they_hold_them(
    seen_group: Group,
) -> None:
    group = seen_group(["a", "b"], strategy="MINIMAL_MOVE")
    mine = group.topics["T"].subscribe_queues
    group.report("b", held=mine[:2])
    group.report("a", held=mine[2:])

    snapshot = group.snapshot()
    owners = compute_ownership(snapshot).owners

    assert [owners[queue][0].client_id for queue in mine] == ["b", "b", "a", "a"]
    (explanation,) = explain(snapshot, mine[0])
    assert any(step.endswith("b reports that it holds this queue") for step in explanation.steps)
