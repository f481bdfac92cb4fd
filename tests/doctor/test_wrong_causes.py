"""What stands beside a fault: the doctor names the cause itself, and whom it concerns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparrowmq.doctor import Severity, compute_ownership, diagnose
from sparrowmq.doctor.explain import explain
from sparrowmq.doctor.group_snapshot import DeadLetterCount, ProgressChange, TopicPace
from sparrowmq.doctor.group_view import examine
from sparrowmq.model import MessageQueue
from sparrowmq.words import Phrase

# What the fixture gives; a test directory is not a package to import from.
Group = Any
FIRST, SECOND, THIRD = "10.0.0.1@1", "10.0.0.2@1", "10.0.0.3@1"
RETRY = "%RETRY%G"


def queues(*ids: int, topic: str = "T", broker: str = "broker-a") -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, broker, queue_id) for queue_id in ids)


def test_r01_is_a_warning_while_any_of_the_duplicates_may_be_a_reconnect(
    seen_group: Group,
) -> None:
    twice = [FIRST, FIRST, SECOND, SECOND]
    group = seen_group(twice)
    group.listing("broker-a", twice, before=[FIRST, FIRST, SECOND])

    found = group.findings()["R01"]

    assert found.severity == Severity.WARN
    assert "did not show every duplicate" in found.evidence[-1]


def test_broker_without_a_queue_of_the_group_need_not_list_its_members(seen_group: Group) -> None:
    group = seen_group()
    group.listing("broker-z", [])
    assert group.findings() == {}

    group.listing("broker-z", [FIRST])

    assert group.findings() == {}


def test_r13_leaves_failed_messages_alone_that_two_members_hold_for_a_moment(
    seen_group: Group,
) -> None:
    group = seen_group(topics=["T", RETRY])
    retries = queues(0, topic=RETRY)
    group.report(FIRST, held=(*queues(0, 1), *retries))
    group.report(SECOND, held=(*queues(2, 3), *retries))

    assert "R13" not in group.findings()


@pytest.mark.parametrize("told", [{"strategy": ""}, {"message_model": ""}, {"is_orderly": None}])
def test_member_that_does_not_tell_differs_from_nobody(
    seen_group: Group, told: dict[str, Any]
) -> None:
    known = {"strategy": "AVG", "message_model": "CLUSTERING", "is_orderly": False}
    group = seen_group()
    group.report(FIRST, held=queues(0, 1), **known)
    group.report(SECOND, held=queues(2, 3), **(known | told))

    assert group.findings() == {}


def test_q08_counts_once_what_somebody_moved_back_between_the_looks(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, then=(100, 100), now=(100, 40))
    at_ms = group.snapshot().last.timestamp_ms
    change = ProgressChange(at_ms, "reset", "10.0.0.9:1", "T", moves=((0, 100, 40),))
    group.now["broker-a"] = replace(group.now["broker-a"], changes=(change,))

    assert group.findings()["Q08"].consequence == "60 messages may be consumed again"


def test_q12_names_a_slow_listener_only_of_the_topic_that_is_behind(seen_group: Group) -> None:
    group = seen_group([FIRST], topics=["T", "U"])
    group.flow(0, topic="U", then=(1_000, 100), now=(1_000, 600))
    slow, quick = TopicPace("T", 2_400.0, 0.4), TopicPace("U", 12.0, 80.0)
    group.report(FIRST, paces=(slow, quick))

    assert "Q12" not in group.findings()


def test_q13_counts_no_queue_as_stopped_whose_owner_does_not_fail(seen_group: Group) -> None:
    group = seen_group()
    group.flow(2, then=(100, 40), now=(160, 40))
    group.flow(0, 1, 3, then=(1_000, 1_000), now=(1_600, 1_600))
    fails = TopicPace("T", 2.0, 300.0, 0.5)
    group.report(FIRST, held=queues(0, 1), is_orderly=True, paces=(fails,))
    group.report(SECOND, held=queues(2, 3), is_orderly=True)

    assert group.findings().keys() == {"R30"}


def test_q13_finds_new_letters_at_one_broker_though_old_ones_expire_at_another(
    seen_group: Group,
) -> None:
    group = seen_group(brokers=["broker-a", "broker-b"])
    for name, then, now in (("broker-a", 500, 100), ("broker-b", 0, 12)):
        group.then[name] = replace(group.then[name], dead_letters=DeadLetterCount(then, 1))
        group.now[name] = replace(group.now[name], dead_letters=DeadLetterCount(now, 1))

    found = group.findings()["Q13"]

    assert found.severity == Severity.ERROR
    assert found.title == "messages become dead letters: 2.0 a second"


def test_q07_names_no_limit_of_a_member_that_keeps_up(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, 1, then=(200, 100), now=(350, 101))
    group.flow(2, 3, then=(200, 190), now=(350, 340))
    group.report(SECOND, held=queues(2, 3), messages_per_s_max=1_000)

    assert "messages_per_s_max" not in group.findings()["Q07"].remedy


def test_r17_leaves_a_queue_alone_that_nobody_owns_though_its_offset_moves(
    seen_group: Group,
) -> None:
    # Before the second member's id was in use twice, somebody consumed the queue.
    group = seen_group([FIRST, FIRST])
    group.flow(3, then=(5_000, 0), now=(5_120, 60))

    assert "R17" not in group.findings()


def test_r30_leaves_a_late_queue_to_r28_whose_member_moves_none(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, then=(100, 40), now=(100, 40))
    group.flow(2, 3, then=(100, 100), now=(160, 160))
    group.waits_ms[queues(0)[0]] = 600_000

    assert group.findings().keys() == {"R28"}


def test_r15_concerns_the_members_with_the_extra_queues(seen_group: Group) -> None:
    group = seen_group(topics=("T", "U"), queues=3)

    assert group.findings()["R15"].members == (FIRST,)


def test_r10_leaves_a_queue_alone_that_its_former_owner_still_drains(seen_group: Group) -> None:
    group = seen_group()
    group.report(FIRST, held=queues(0, 1, 2))
    group.report(SECOND, held=queues(3))
    *others, drained = group.reports[0].held
    held = (*others, drained._replace(is_dropped=True))
    group.reports[0] = replace(group.reports[0], held=held)

    assert "R10" not in group.findings()


def test_q19_says_that_failed_messages_stay_where_any_broker_takes_none_back(
    seen_group: Group,
) -> None:
    group = seen_group(topics=["T", RETRY], brokers=["broker-a", "broker-b"])
    topic = group.topics[RETRY]
    one, other = topic.queues
    closed = (one._replace(is_writable=False), other._replace(is_readable=False))
    group.topics[RETRY] = replace(topic, queues=closed)

    found = group.findings()["Q19"]

    assert found.title == "brokers take no failed message back"
    assert found.evidence == (
        "broker-a gives no write permission",
        "broker-b gives no read permission",
    )


def test_shares_are_those_of_the_broker_that_lists_most_members(seen_group: Group) -> None:
    group = seen_group(brokers=["broker-a", "broker-b"], queues=2)
    group.listing("broker-a", [SECOND])

    found = compute_ownership(group.snapshot())

    assert [c.client_id for q in queues(0, 1) for c in found.falls_to[q]] == [FIRST, FIRST]


def test_report_of_one_process_says_nothing_of_its_twins_queues(seen_group: Group) -> None:
    group = seen_group([FIRST, FIRST, SECOND], queues=3)
    # Java's broker asks one of the two, which has just begun.
    group.report(FIRST)
    group.report(SECOND, held=queues(2))

    found = compute_ownership(group.snapshot())

    assert found.owner_ids(queues(0)[0]) == (FIRST, FIRST)
    assert "R10" not in group.findings()


def test_offset_beyond_the_end_hides_no_backlog_of_other_queues(seen_group: Group) -> None:
    group = seen_group([FIRST])
    group.flow(0, then=(10, 900), now=(10, 900))
    group.flow(1, then=(600, 100), now=(600, 100))
    view = examine(group.snapshot())

    assert view.known_lag == 500
    assert view.describe_backlog(queues(0, 1)) == "500 messages behind, not growing now"


def test_finding_stands_not_below_one_about_other_members(seen_group: Group) -> None:
    group = seen_group([FIRST, FIRST, THIRD], queues=4)
    group.flow(3, then=(10_000, 100), now=(10_000, 160))
    group.flow(0, 1, 2, then=(100, 100), now=(160, 160))

    found = {each.rule: each for each in diagnose(group.snapshot())}

    assert found["R01"].members == (FIRST,)
    assert found["Q07"].members == (THIRD,)


def test_client_that_never_tells_what_it_subscribes_takes_its_share(seen_group: Group) -> None:
    group = seen_group()
    group.report(FIRST, expressions={}, held=queues(0, 1))
    group.report(SECOND, expressions={}, held=queues(2, 3))

    assert compute_ownership(group.snapshot()).unwanted == ()
    assert group.findings() == {}


def test_r03_leaves_a_topic_to_r33_that_members_reach_though_a_name_server_does_not_know_it(
    seen_group: Group,
) -> None:
    group = seen_group(brokers=["broker-a", "broker-b"])
    topic = group.topics["T"]
    known = (("10.0.9.1:9876", ()), ("10.0.9.2:9876", ("broker-a",)))
    group.topics["T"] = replace(topic, queues=topic.queues[:1], broker_names_by_server=known)

    found = group.findings()

    assert "R03" not in found
    assert found["R33"].title == "name servers disagree about topic T"


def test_nobody_is_said_to_have_consumed_what_only_some_queues_owners_have(
    seen_group: Group,
) -> None:
    group = seen_group([FIRST, FIRST])
    group.flow(0, then=(100, 100), now=(103, 100))
    group.flow(3, then=(100, 100), now=(103, 100))
    view = examine(group.snapshot())

    assert view.describe_backlog(queues(0, 3)) == "6 messages behind, growing by 1.0 a second"


def test_explanation_goes_round_the_ring_to_its_first_node(seen_group: Group) -> None:
    snapshot = seen_group(["c2"], queues=64, strategy="CONSISTENT_HASH").snapshot()
    told = [
        step
        for queue in queues(*range(64))
        for step in explain(snapshot, queue)[0].steps
        if isinstance(step, Phrase) and "at" in step.values
    ]

    places = {str(step.values["at"]): int(str(step.values["at"]).replace(",", "")) for step in told}
    first = {str(step.values["at"]) for step in told if "since none follows" in step}
    assert len(places) > 5
    assert first == {min(places, key=lambda place: places[place])}
