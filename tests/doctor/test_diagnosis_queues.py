"""The doctor's rules on queues, loads and flow; whom it takes for owners; how it explains them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from sparrowmq.cli.rebalance_json import json_of_findings, json_of_group
from sparrowmq.cli.rebalance_view import render_group
from sparrowmq.doctor import Severity, compute_ownership, diagnose
from sparrowmq.doctor.explain import explain, find_queue
from sparrowmq.doctor.finding import describe_runs
from sparrowmq.doctor.group_snapshot import (
    BROADCASTING,
    LATE_MS,
    LETTER_IS_NEW_MS,
    DeadLetterCount,
    ProgressChange,
    TopicPace,
    TopicSnapshot,
)
from sparrowmq.doctor.group_view import examine
from sparrowmq.doctor.ownership import OwnerState
from sparrowmq.doctor.rules import apply_rules
from sparrowmq.errors import UsageError
from sparrowmq.model import MessageQueue
from sparrowmq.words import Phrase
from sparrowmq.words.catalog import Words

# What the fixture gives; a test directory is not a package to import from.
Group = Any
# A listener that succeeds for most messages.
FAILS = TopicPace("T", 2.0, 300.0, 0.5)

FIRST, SECOND = "10.0.0.1@1", "10.0.0.2@1"
RETRY = "%RETRY%G"


def queues(*ids: int, topic: str = "T", broker: str = "broker-a") -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, broker, queue_id) for queue_id in ids)


def test_r10_finds_queues_that_their_owner_does_not_hold(seen_group: Group) -> None:
    group = seen_group()
    group.report(FIRST, held=queues(0, 1))
    group.report(SECOND, held=queues(2))
    group.flow(3, then=(10, 10), now=(40, 10))

    found = group.findings()["R10"]

    assert queues(3) == found.unowned
    assert found.evidence == (f"T at broker-a: 3 falls to {SECOND}",)
    assert "30 messages behind, growing by 5.0 a second" in found.consequence
    # A member that has just left had it, and another takes it next.
    group.listing("broker-a", [FIRST, SECOND], before=[FIRST, SECOND, "10.0.0.3@1"])
    assert "R10" not in group.findings()
    group.listing("broker-a", [FIRST, SECOND])
    assert "R10" in group.findings()
    # Who does not tell may well hold it.
    group.reports.pop()
    assert "R10" not in group.findings()


@pytest.mark.parametrize(
    ("expression", "came", "consumed_ms", "fires"),
    [
        ("Pay", 60, 0, True),
        ("Pay", 40, 0, False),
        ("*", 60, 0, False),
        ("Pay", 60, 1_700_000_000_000, False),
        ("Pay", 60, 1_699_999_940_000, True),
    ],
)
def test_q17_finds_a_filter_that_matches_nothing_of_what_arrives(
    seen_group: Group, expression: str, came: int, consumed_ms: int, fires: bool
) -> None:
    group = seen_group([FIRST])
    group.report(FIRST, expressions={"T": expression}, held=queues(0, 1, 2, 3))
    held = [h._replace(last_consume_timestamp_ms=consumed_ms) for h in group.reports[0].held]
    group.reports[0] = replace(group.reports[0], held=tuple(held))
    # The broker holds the pulls of queue 0, and the group passed over the messages of queue 1.
    group.flow(0, then=(100, 100), now=(110, 100))
    group.flow(1, then=(100, 100), now=(90 + came, 90 + came))

    found = group.findings().get("Q17")

    assert fires == (found is not None)
    if found is not None:
        assert found.evidence == ("Pay matched 0 of 60 messages that came within 6.0 s",)


@pytest.mark.parametrize(("ago_ms", "fires"), [(59_999, False), (60_000, True)])
def test_q17_reads_a_members_times_by_the_members_clock(
    seen_group: Group, ago_ms: int, fires: bool
) -> None:
    group = seen_group([FIRST])
    group.report(FIRST, expressions={"T": "Pay"}, held=queues(0, 1, 2, 3))
    pulled_ms = group.snapshot().last.timestamp_ms - 3_600_000
    held = [
        each._replace(
            last_pull_timestamp_ms=pulled_ms, last_consume_timestamp_ms=pulled_ms - ago_ms
        )
        for each in group.reports[0].held
    ]
    group.reports[0] = replace(group.reports[0], held=tuple(held))
    group.flow(1, then=(100, 100), now=(190, 190))

    assert fires == ("Q17" in group.findings())


def test_q18_finds_brokers_that_refuse_the_expression(seen_group: Group) -> None:
    group = seen_group([FIRST])
    group.now["broker-a"] = replace(group.now["broker-a"], refused_filter="no SQL92 here")

    found = group.findings()["Q18"]

    assert found.evidence == ("broker-a: no SQL92 here",)
    assert found.unowned == queues(0, 1, 2, 3)


@pytest.mark.parametrize(
    ("where", "fires"),
    [("CONSUME_FROM_LAST_OFFSET", True), ("CONSUME_FROM_FIRST_OFFSET", False)],
)
def test_r11_tells_what_a_start_at_the_end_would_skip(
    seen_group: Group, where: str, fires: bool
) -> None:
    group = seen_group(where=where)
    group.flow(3, then=(500, None), now=(600, None))

    found = group.findings().get("R11")

    assert fires == (found is not None)
    if found is not None:
        assert "600 messages would never be consumed" in found.consequence
        assert "T at broker-a: 3" in found.evidence


def test_r11_leaves_messages_alone_that_came_between_the_looks(seen_group: Group) -> None:
    group = seen_group(where="CONSUME_FROM_LAST_OFFSET")
    group.flow(3, then=(0, None), now=(60, None))

    assert "R11" not in group.findings()


def test_r11_leaves_a_group_alone_that_has_committed_nothing(seen_group: Group) -> None:
    group = seen_group(where="CONSUME_FROM_LAST_OFFSET", interval_ms=0)
    group.flow(0, 1, 2, 3, then=(0, None), now=(60, None))

    assert "R11" not in group.findings()


def test_r13_finds_queues_that_two_members_hold(seen_group: Group) -> None:
    group = seen_group()
    group.report(FIRST, held=queues(0, 1, 2))
    group.report(SECOND, held=queues(2, 3))

    found = group.findings()["R13"]

    assert queues(2) == found.double
    assert f"T at broker-a: 2: {FIRST}, {SECOND}" in found.evidence
    # The first gives the queue up.
    *others, last = group.reports[0].held
    held = (*others, last._replace(is_dropped=True))
    group.reports[0] = replace(group.reports[0], held=held)
    assert "R13" not in group.findings()


def test_r13_finds_different_strategies(seen_group: Group) -> None:
    group = seen_group()
    group.report(FIRST, held=queues(0, 1), strategy="AVG")
    group.report(SECOND, held=queues(1, 3), strategy="AVG_BY_CIRCLE")

    found = group.findings()["R13"]

    assert found.title == "members run different strategies"
    assert found.evidence == (f"{FIRST}: AVG", f"{SECOND}: AVG_BY_CIRCLE")
    group.reports[1] = replace(group.reports[1], strategy="AVG", held=group.reports[1].held[1:])
    assert "R13" not in group.findings()


def test_owners_by_a_strategy_with_settings_of_its_own_are_those_who_report_them(
    seen_group: Group,
) -> None:
    # Java's members report the name alone.
    group = seen_group(strategy="CONSISTENT_HASH (own settings)")
    group.report(FIRST, held=queues(1, 3), strategy="CONSISTENT_HASH")
    group.report(SECOND, held=queues(0, 2), strategy=group.strategy)

    owners = compute_ownership(group.snapshot()).owners

    assert [owners[queue][0].client_id for queue in queues(0, 1, 2, 3)] == [
        SECOND,
        FIRST,
        SECOND,
        FIRST,
    ]
    assert group.findings().keys() == {"Q05"}


def test_r13_leaves_rooms_alone_of_which_java_reports_the_class(seen_group: Group) -> None:
    group = seen_group(strategy="MACHINE_ROOM_NEARBY")
    group.report(FIRST, held=queues(0, 1), strategy="MACHINE_ROOM_NEARBY")
    group.report(SECOND, held=queues(2, 3), strategy="MACHINE_ROOM_NEARBY-AVG")

    assert group.findings().keys() == {"Q05"}


@pytest.mark.parametrize(
    ("topics", "fires"), [(("T", "U", "V"), True), (("T", "U"), True), (("T",), False)]
)
def test_r15_finds_that_the_first_ids_get_the_extra_queue_of_every_topic(
    seen_group: Group, topics: tuple[str, ...], fires: bool
) -> None:
    group = seen_group(topics=topics, queues=3)

    found = group.findings().get("R15")

    assert fires == (found is not None)
    if found is not None:
        count = len(topics)
        assert found.evidence == (f"{FIRST}: {2 * count} queues", f"{SECOND}: {count} queues")


@pytest.mark.parametrize(
    ("brokers", "fires"),
    [(("room1-a", "room2-a", "room3-a", "room4-a"), True), (("room1-a",), False)],
)
def test_r16_finds_what_rooms_without_members_do(
    seen_group: Group, brokers: tuple[str, ...], fires: bool
) -> None:
    ids = ["room1-10.0.0.1@1", "room1-10.0.0.2@1"]
    group = seen_group(ids, brokers=brokers, queues=1, strategy="MACHINE_ROOM_NEARBY-AVG")

    assert fires == ("R16" in group.findings())


@pytest.mark.parametrize(("lag", "fires"), [(5_000, True), (900, False)])
def test_r17_finds_a_queue_far_behind_the_others(seen_group: Group, lag: int, fires: bool) -> None:
    group = seen_group()
    group.flow(2, then=(lag, 0), now=(lag + 120, 60))
    group.flow(1, then=(100, 60), now=(100, 60))

    found = group.findings().get("R17")

    assert fires == (found is not None)
    if found is not None:
        assert found.members == (SECOND,)
        assert found.evidence == (
            "T at broker-a: 2: 5,060 messages behind, growing by 10 a second",
            "the topic's other queues: at most 40 messages behind",
        )


def test_r17_compares_a_queue_with_the_others_alone(seen_group: Group) -> None:
    group = seen_group(queues=2)
    group.flow(1, then=(5_000, 0), now=(5_120, 60))

    assert "R17" in group.findings()


def test_r17_leaves_queues_alone_that_have_no_owner_or_stand_still(seen_group: Group) -> None:
    group = seen_group([FIRST, FIRST])
    group.flow(3, then=(5_000, 0), now=(5_120, 0))
    assert "R17" not in group.findings()

    group = seen_group()
    group.flow(0, then=(5_000, 40), now=(5_000, 40))
    group.flow(1, 2, 3, then=(100, 100), now=(160, 160))
    assert group.findings().keys() == {"R30"}


def test_r17_speaks_of_other_members_only_where_there_are_some(seen_group: Group) -> None:
    group = seen_group([FIRST])
    group.flow(0, then=(10_000, 1_000), now=(10_000, 1_100))

    found = group.findings()["R17"]

    assert "other members" not in found.consequence
    assert "AVG_BY_LOAD" not in found.remedy


def test_r21_and_r25_tell_of_broadcasting(seen_group: Group) -> None:
    group = seen_group(model=BROADCASTING)
    assert group.findings().keys() == {"R21"}

    group.report(FIRST, is_orderly=True)

    assert group.findings().keys() == {"R21", "R25"}
    assert "R21" not in seen_group().findings()


def test_broadcasting_members_share_no_queue_by_a_strategy_and_have_no_known_lag(
    seen_group: Group,
) -> None:
    group = seen_group(model=BROADCASTING, strategy="CONFIG")
    group.flow(0, then=(4_400, 0), now=(5_000, 0))
    group.flow(1, 2, 3, then=(100, 0), now=(100, 0))
    group.report(FIRST, strategy="CONFIG")
    group.report(SECOND, strategy="AVG")

    assert group.findings().keys() == {"R21"}
    view = examine(group.snapshot())
    assert view.known_lag is None
    found = json_of_findings(view, [])
    assert (found["lag"], found["growth_per_second"]) == (None, None)
    queue = json_of_group(view)["queues"][0]
    assert (queue["produced_per_second"], queue["consumed_per_second"]) == (100, None)
    (console := Console(width=200)).begin_capture()
    console.print(render_group(view, console))
    (row,) = [line.split() for line in console.end_capture().splitlines() if "broker-a:0 " in line]
    assert row[1:4] == ["?", "100", "?"]


def test_broadcasting_members_that_come_or_are_silent_leave_no_queue_alone(
    seen_group: Group,
) -> None:
    group = seen_group(model=BROADCASTING, brokers=["broker-a", "broker-b"])
    group.listing("broker-a", [FIRST, SECOND], before=[FIRST])
    group.listing("broker-b", [FIRST])
    group.flow(0, 1, then=(5_000, 0), now=(5_000, 0))
    group.report(SECOND, is_silent=True, failure="no answer")

    assert group.findings().keys() == {"R21"}
    group.listing("broker-b", [])
    assert "refuses the members' pulls" in group.findings()["R08"].consequence


def test_broadcasting_members_wait_for_no_lock(seen_group: Group) -> None:
    group = seen_group(model=BROADCASTING, language="PYTHON")
    group.flow(0, then=(5_000, 0), now=(5_000, 0))
    group.report(FIRST, held=queues(0), is_orderly=True, is_locked=False)

    assert group.findings().keys() == {"R21"}


@pytest.mark.parametrize(("is_locked", "fires"), [(False, True), (True, False)])
def test_r22_finds_an_ordered_consumer_without_its_lock(
    seen_group: Group, is_locked: bool, fires: bool
) -> None:
    group = seen_group([FIRST])
    group.report(FIRST, held=queues(0, 1, 2, 3), is_orderly=True, is_locked=is_locked)
    group.flow(1, then=(100, 90), now=(100, 91))

    found = group.findings().get("R22")

    assert fires == (found is not None)
    if found is not None:
        assert found.evidence == (f"T at broker-a: 1 at {FIRST}",)


@pytest.mark.parametrize("committed", [90, 91])
def test_r22_leaves_a_queue_alone_that_moves_before_it_changes_hands(
    seen_group: Group, committed: int
) -> None:
    group = seen_group([FIRST])
    group.report(FIRST, held=queues(0), is_orderly=True, is_locked=False)
    starting = group.reports[0].held[0]._replace(state="STARTING")
    group.reports[0] = replace(group.reports[0], held=(starting,))
    group.flow(0, then=(100, 90), now=(100, committed))

    assert (committed == 90) == ("R22" in group.findings())


def test_r30_finds_one_queue_that_stands_still(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, then=(100, 40), now=(160, 40))
    group.flow(1, 2, 3, then=(100, 100), now=(160, 160))

    found = group.findings()["R30"]

    assert group.findings().keys() == {"R30"}
    assert "offset 40 of 160 did not move within 6.0 s" in found.evidence
    assert "120 messages behind, growing by 10 a second" in found.consequence
    assert [" ".join(command.arguments) for command in found.commands] == [
        "msg at T broker-a:0 40",
        "group reset G --topic T --queue broker-a:0 --to 41",
    ]
    assert found.members == (FIRST,)
    seen = group.snapshot()
    stuck, *others = seen.last.progress
    stuck = stuck._replace(last_timestamp_ms=seen.last.timestamp_ms - 90_000)
    seen = replace(seen, samples=(seen.first, replace(seen.last, progress=(stuck, *others))))
    assert "the last message consumed was stored 90 s ago" in diagnose(seen)[0].evidence
    # A member of which nothing moves is R28.
    group.flow(1, then=(100, 100), now=(100, 100))
    assert group.findings().keys() == {"R28"}


def test_r30_finds_failed_messages_that_wait_though_no_others_come(seen_group: Group) -> None:
    group = seen_group([FIRST], topics=["T", RETRY], queues=1)
    group.flow(0, topic=RETRY, then=(100, 50), now=(100, 50))
    (retries,) = (queue for queue in group.offsets if queue.topic == RETRY)
    group.waits_ms[retries] = LATE_MS

    found = group.findings()["R30"]

    assert found.members == (FIRST,)
    assert [" ".join(command.arguments) for command in found.commands] == [
        f"msg at {RETRY} broker-a:0 50",
        f"group reset G --topic {RETRY} --queue broker-a:0 --to 51",
    ]

    # A consumer that polls does not take failed messages.
    group.report(FIRST, held=queues(0))
    group.flow(0, then=(100, 100), now=(160, 160))

    assert group.findings() == {}


def test_r30_finds_a_queue_that_stands_still_while_its_owner_consumes_failed_messages(
    seen_group: Group,
) -> None:
    group = seen_group([FIRST], topics=["T", RETRY], queues=1)
    group.flow(0, then=(100, 50), now=(110, 50))
    group.flow(0, topic=RETRY, then=(100, 40), now=(130, 60))

    assert group.findings().keys() == {"R30"}


@pytest.mark.parametrize("is_orderly", [False, True])
def test_r30_says_what_waits_behind_the_message(seen_group: Group, is_orderly: bool) -> None:
    group = seen_group()
    group.flow(0, then=(100, 40), now=(160, 40))
    group.flow(1, 2, 3, then=(100, 100), now=(160, 160))
    group.report(FIRST, held=queues(0, 1), is_orderly=is_orderly)
    group.report(SECOND, held=queues(2, 3), is_orderly=True)

    consequence = group.findings()["R30"].consequence

    assert ("in order, no later message" in consequence) == is_orderly
    assert ("later messages may be done" in consequence) != is_orderly


def test_r30_leaves_calls_alone_that_last_longer_than_the_look(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, then=(100, 90), now=(110, 90))
    group.flow(1, 2, 3, then=(100, 90), now=(110, 100))
    assert "R30" in group.findings()

    group.report(FIRST, held=queues(0, 1), paces=(TopicPace("T", 20_000, 1.0, 0.0),))

    assert "R30" not in group.findings()


def test_r30_leaves_a_message_alone_that_has_just_come(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, then=(100, 100), now=(101, 100))
    group.flow(1, then=(100, 100), now=(160, 160))

    assert "R30" not in group.findings()


def test_r32_says_that_brokers_assign_queues_of_pop(seen_group: Group) -> None:
    assert "R32" in seen_group(consume_type="CONSUME_POP").findings()
    assert "R32" not in seen_group().findings()


def test_q01_finds_queues_that_take_messages_and_are_not_read(seen_group: Group) -> None:
    group = seen_group()
    view: TopicSnapshot = group.topics["T"]
    at = view.queues[0]._replace(write_count=6)
    group.topics["T"] = replace(view, queues=(at,), surplus_offsets=((queues(5)[0], 7),))

    found = group.findings()["Q01"]

    assert queues(4, 5) == found.unowned
    assert found.evidence == ("broker-a: readQueueNums 4, writeQueueNums 6",)
    assert "stored there: 7 messages" in found.consequence
    assert [" ".join(each.arguments) for each in found.commands] == [
        "topic update T --read-queues 6"
    ]
    group.topics["T"] = replace(view, queues=(at._replace(is_writable=False),))
    assert "Q01" not in group.findings()


def test_q02_finds_topics_that_cannot_be_read(seen_group: Group) -> None:
    group = seen_group()
    view: TopicSnapshot = group.topics["T"]
    group.topics["T"] = replace(view, queues=(view.queues[0]._replace(is_readable=False),))
    assert group.findings()["Q02"].evidence == ("broker-a gives no read permission",)
    assert compute_ownership(group.snapshot()).owners == {}, "nobody divides its queues"
    # Without both permissions, the one that members miss is told.
    closed = view.queues[0]._replace(is_readable=False, is_writable=False)
    group.topics["T"] = replace(view, queues=(closed,))
    assert group.findings()["Q02"].evidence == ("broker-a gives no read permission",)

    group.topics["T"] = replace(view, queues=())

    found = group.findings()
    assert "no name server knows topic T" in found["Q02"].title
    assert "R14" not in found


@pytest.mark.parametrize(("count", "severity"), [(1, Severity.INFO), (2, Severity.WARN)])
def test_q02_warns_where_no_broker_accepts_messages(
    seen_group: Group, count: int, severity: Severity
) -> None:
    group = seen_group(brokers=["broker-a", "broker-b"])
    view: TopicSnapshot = group.topics["T"]
    closed = [at._replace(is_writable=False) for at in view.queues[:count]]
    group.topics["T"] = replace(view, queues=(*closed, *view.queues[count:]))

    assert group.findings()["Q02"].severity == severity


def test_q16_costs_the_queues_of_those_brokers_alone_that_say_so(seen_group: Group) -> None:
    group = seen_group(brokers=["broker-a", "broker-b"])
    group.now["broker-b"] = replace(group.now["broker-b"], is_disabled=True)

    found = group.findings()["Q16"]
    assert found.unowned == queues(0, 1, 2, 3, broker="broker-b")
    assert "members are connected" in found.consequence
    # Those of consumers by message, whom brokers do not list, are refused too.
    for broker in ("broker-a", "broker-b"):
        group.now[broker] = replace(group.now[broker], cid_all=(), connections=())
    assert "members are connected" not in group.findings()["Q16"].consequence


def test_q05_says_when_owners_cannot_be_computed_and_shows_those_who_tell(
    seen_group: Group,
) -> None:
    group = seen_group(strategy="CONFIG")
    group.report(FIRST, held=queues(0))
    group.report(SECOND, held=queues(1))
    drained = group.reports[1].held[0]._replace(is_dropped=True)
    group.reports[1] = replace(group.reports[1], held=(drained,))

    found = compute_ownership(group.snapshot())

    assert "Q05" in group.findings()
    assert [c.client_id for c in found.owners[queues(0)[0]]] == [FIRST]
    assert found.owners[queues(1)[0]] == found.falls_to[queues(1)[0]] == ()


def test_r10_finds_queues_that_a_strategy_with_settings_gives_to_nobody(
    seen_group: Group,
) -> None:
    group = seen_group([FIRST], strategy="CONFIG")
    group.report(FIRST, held=queues(0, 1))

    found = group.findings()["R10"]

    assert found.unowned == queues(2, 3)
    assert found.evidence == ("by strategy CONFIG no member has T at broker-a: 2, 3 in hand",)


def test_r10_finds_queues_that_a_strategy_gives_to_nobody_because_it_fails(
    seen_group: Group,
) -> None:
    # The second member's id does not name a machine room.
    ids = ("room1-10.0.0.1@1", "10")
    group = seen_group(ids, brokers=["room1-a"], strategy="MACHINE_ROOM_NEARBY-AVG")
    held = queues(0, 1, broker="room1-a")
    group.flow(*range(4), broker="room1-a", then=(100, 0), now=(160, 0))
    # Members keep what they have while their strategy fails.
    group.report(ids[0], held=held)
    group.report(ids[1])

    found = group.findings()["R10"]
    owners = compute_ownership(group.snapshot())

    assert found.unowned == queues(2, 3, broker="room1-a")
    assert "errors of the strategy" in found.remedy
    assert [owners.owner_ids(queue) for queue in held] == [ids[:1]] * 2


def test_q19_finds_a_retry_topic_that_takes_no_message(seen_group: Group) -> None:
    group = seen_group()
    closed = group.topics["T"].queues[0]._replace(is_writable=False)
    group.topics["%RETRY%G"] = TopicSnapshot(topic="%RETRY%G", queues=(closed,))

    found = group.findings()

    assert found.keys() == {"Q19"}
    assert found["Q19"].evidence == ("broker-a gives no write permission",)


@pytest.mark.parametrize(
    ("expired", "cached", "is_found"), [(30, 0, True), (0, 0, False), (30, 5, False)]
)
def test_q22_finds_messages_that_expired_and_that_no_member_has_in_hand(
    seen_group: Group, expired: int, cached: int, is_found: bool
) -> None:
    group = seen_group([FIRST])
    group.flow(0, then=(200, 100), now=(200, 100))
    group.report(FIRST, held=queues(0), cached=cached)
    snapshot = group.snapshot()
    lost, *others = snapshot.last.progress
    last = replace(snapshot.last, progress=(lost._replace(expired=expired), *others))

    found = {
        finding.rule: finding
        for finding in apply_rules(examine(replace(snapshot, samples=(snapshot.first, last))))
    }

    assert ("Q22" in found) == is_found
    if is_found:
        assert found["Q22"].evidence == ("T at broker-a: 0: 30 messages from offset 100 on",)
    broker = replace(last.brokers[0], message_model=BROADCASTING)
    view = examine(replace(snapshot, samples=(snapshot.first, replace(last, brokers=(broker,)))))
    assert "Q22" not in {finding.rule for finding in apply_rules(view)}


def test_q23_finds_messages_in_queues_that_their_topic_has_no_more(seen_group: Group) -> None:
    group = seen_group(queues=2)
    group.flow(2, then=(140, 100), now=(140, 100))
    group.flow(5, then=(130, 100), now=(130, 100))
    group.flow(7, then=(100, 100), now=(100, 100))
    # Nobody knows how many queues the topic has there.
    group.flow(2, broker="broker-z", then=(140, 100), now=(140, 100))

    found = group.findings()

    assert found.keys() == {"Q23"}
    assert found["Q23"].unowned == queues(2, 5)
    assert found["Q23"].evidence == (
        "T at broker-a: 2: 40 messages from offset 100 on",
        "T at broker-a: 5: 30 messages from offset 100 on",
    )
    assert found["Q23"].commands[0].arguments == ("topic", "update", "T", "--read-queues", "6")


@pytest.mark.parametrize(("write_count", "rule"), [(4, "Q01"), (2, "Q23")])
def test_no_command_takes_queues_from_another_broker(
    seen_group: Group, write_count: int, rule: str
) -> None:
    group = seen_group(queues=2)
    view: TopicSnapshot = group.topics["T"]
    at = view.queues[0]._replace(write_count=write_count)
    more = at._replace(broker_name="broker-b", read_count=16, write_count=1)
    group.topics["T"] = replace(view, queues=(at, more))
    group.flow(3, then=(140, 100), now=(140, 100))

    (command,) = group.findings()[rule].commands

    assert command.arguments == ("topic", "update", "T", "--read-queues", "16")


@pytest.mark.parametrize(("done", "rules"), [(1_000, {"Q20"}), (150, {"Q06"})])
def test_q20_finds_what_is_consumed_and_not_committed(
    seen_group: Group, done: int, rules: set[str]
) -> None:
    group = seen_group([FIRST])
    group.flow(0, 1, 2, 3, then=(1_000, 100), now=(1_030, 100))
    group.report(FIRST, held=queues(0, 1, 2, 3), done=done)

    assert group.findings().keys() == rules


def test_a_queue_stands_still_though_its_last_commit_was_lost(seen_group: Group) -> None:
    group = seen_group([FIRST])
    group.flow(0, 1, 2, 3, then=(100, 0), now=(130, 0))
    group.report(FIRST, held=queues(0, 1, 2, 3), done=5)
    assert group.findings().keys() == {"Q06"}

    # In BROADCASTING no broker knows what was consumed.
    group.reports.clear()
    group.report(FIRST, held=queues(0, 1, 2, 3), done=1_000, message_model=BROADCASTING)

    assert "Q20" not in group.findings()


def test_q06_finds_a_group_that_stands_still_and_what_members_have_in_hand(
    seen_group: Group,
) -> None:
    group = seen_group()
    group.flow(0, 1, 2, 3, then=(100, 40), now=(160, 40))
    group.report(FIRST, held=queues(0, 1), cached=500)
    group.waits_ms[queues(0)[0]] = LATE_MS

    found = group.findings()["Q06"]

    assert found.severity == Severity.ERROR
    assert group.findings().keys() == {"Q06"}
    assert "480 messages behind, growing by 40 a second" in found.consequence
    assert f"{FIRST} has 1,000 messages in hand" in found.evidence
    assert f"{SECOND} does not report its messages in hand" in found.evidence
    group.flow(0, then=(100, 40), now=(160, 41))
    assert "Q06" not in group.findings()


@pytest.mark.parametrize(("wait_ms", "fires"), [(LATE_MS - 1, False), (LATE_MS, True)])
def test_q06_finds_a_group_that_filters_once_a_message_is_late(
    seen_group: Group, wait_ms: int, fires: bool
) -> None:
    # None of its members reports what it has in hand.
    group = seen_group()
    group.listing("broker-a", [FIRST, SECOND], expressions={"T": "A"})
    group.flow(0, 1, 2, 3, then=(160, 40), now=(160, 40))
    group.waits_ms = dict.fromkeys(queues(0, 1, 2, 3), wait_ms)

    assert fires == ("Q06" in group.findings())


def test_q06_shows_the_fullest_queues_message_and_the_last_pull(seen_group: Group) -> None:
    group = seen_group([FIRST])
    group.flow(0, then=(100, 40), now=(100, 40))
    group.flow(1, then=(900, 50), now=(900, 50))
    group.report(FIRST, held=queues(0, 1))
    now_ms = group.snapshot().last.timestamp_ms
    held = [
        each._replace(last_pull_timestamp_ms=now_ms - ago_ms)
        for each, ago_ms in zip(group.reports[0].held, (90_000, 20_000), strict=True)
    ]
    group.reports[0] = replace(group.reports[0], held=tuple(held))

    found = group.findings()["Q06"]

    assert found.commands[-1].arguments == ("msg", "at", "T", "broker-a:1", "50")
    assert f"{FIRST} has 0 messages in hand and last pulled 20 s ago" in found.evidence


def test_q06_is_found_though_a_queue_has_its_first_messages_since(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, 1, 2, then=(100, 40), now=(110, 40))
    group.flow(3, then=(100, 100), now=(103, 100))

    assert group.findings()["Q06"].severity == Severity.ERROR
    # One message in hand, and one that has just come: members may have consumed both.
    group.flow(0, then=(101, 100), now=(101, 100))
    group.flow(1, 2, then=(100, 100), now=(100, 100))
    group.flow(3, then=(100, 100), now=(101, 100))
    assert group.findings() == {}


def test_q06_leaves_calls_alone_that_last_longer_than_the_look(seen_group: Group) -> None:
    group = seen_group([FIRST])
    group.flow(0, then=(102, 100), now=(102, 100))
    group.report(FIRST, held=queues(0, 1, 2, 3), paces=(TopicPace("T", 9_000.0, 0.2),))
    assert group.findings() == {}

    # So many wait that calls which end would have moved something.
    group.flow(0, then=(140, 100), now=(140, 100))
    assert "Q06" in group.findings()


def test_q06_leaves_retries_alone_that_wait(seen_group: Group) -> None:
    group = seen_group(topics=["T", RETRY])
    group.flow(0, topic=RETRY, then=(100, 50), now=(100, 50))

    assert "Q06" not in group.findings()


def test_q06_leaves_members_that_do_not_answer_to_r28(seen_group: Group) -> None:
    group = seen_group([FIRST])
    group.flow(0, 1, 2, 3, then=(100, 40), now=(160, 40))
    group.report(FIRST, is_silent=True, failure="no answer")

    assert group.findings().keys() == {"R28"}


def test_q06_is_found_while_any_owner_answers(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, 1, 2, 3, then=(100, 40), now=(160, 40))
    group.report(FIRST, is_silent=True, failure="no answer")
    group.report(SECOND, held=queues(2, 3), cached=5)

    assert "Q06" in group.findings()


@pytest.mark.parametrize(
    ("produced", "severity", "means"),
    [
        (1_200, Severity.WARN, "the backlog grows by 240,000 messages every hour"),
        (800, Severity.WARN, "the backlog does not change"),
        (0, Severity.INFO, "at this pace the members catch up in 4 min"),
    ],
)
def test_q07_finds_members_slower_than_their_producers(
    seen_group: Group, produced: int, severity: Severity, means: str
) -> None:
    group = seen_group()
    group.flow(0, 1, 2, 3, then=(10_000 - produced // 4, 1_500), now=(10_000, 1_500 + 800 // 4))

    found = group.findings()["Q07"]

    assert "Q10" not in group.findings()
    assert severity == found.severity
    assert means in found.consequence
    pace = f"{FIRST}: {produced / 12:.0f} messages a second in, 67 out, 16,600 behind"
    assert pace in found.evidence
    assert "2 more can get a queue" in found.remedy


def test_q07_names_the_one_member_that_is_slower_than_the_others(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, 1, then=(200, 100), now=(350, 101))
    group.flow(2, 3, then=(200, 190), now=(350, 340))

    found = group.findings()["Q07"]

    assert found.title == "1 of 2 members: messages arrive faster than they are consumed"
    assert found.members == (FIRST,)
    assert (
        found.consequence == "498 messages behind: the backlog grows by 178,800 messages every hour"
    )
    assert "AVG_BY_LOAD divides by measured load" in found.remedy


def test_q07_does_not_compare_members_with_those_that_have_no_queue(seen_group: Group) -> None:
    group = seen_group([FIRST, SECOND, "10.0.0.3@1"], queues=2)
    group.flow(0, 1, then=(10_000, 1_500), now=(10_000, 1_700))

    found = group.findings()["Q07"]

    assert found.title == "2 of 3 members: the backlog is shrinking"
    assert "more members help only once the topics have more queues" in found.remedy


def test_q07_counts_failed_messages_that_come_again(seen_group: Group) -> None:
    group = seen_group(topics=["T", RETRY], queues=4)
    group.flow(0, topic=RETRY, then=(50_000, 10_000), now=(50_600, 10_600))

    found = group.findings()

    assert found.keys() == {"Q07"}
    assert found["Q07"].members == (FIRST,)
    assert found["Q07"].title == "1 of 2 members: the backlog does not shrink"
    assert f"come again through {RETRY} at broker-a: 0, and one queue" in found["Q07"].remedy

    # Consumers that poll do not take failed messages, whatever others did.
    group.report(FIRST, held=queues(0, 1))
    group.report(SECOND, held=queues(2, 3))
    assert group.findings() == {}


def test_q07_names_the_limit_that_a_member_sets_itself(seen_group: Group) -> None:
    group = seen_group([FIRST])
    group.flow(0, 1, 2, 3, then=(1_000, 0), now=(1_300, 100))
    group.report(FIRST, held=queues(0, 1, 2, 3), messages_per_s_max=67)

    found = group.findings()["Q07"]

    assert f"raise messages_per_s_max of {FIRST}" in found.remedy
    assert found.evidence[0].endswith("its limit is 67 a second")


@pytest.mark.parametrize(("limit", "stands_still"), [(1, False), (2, True)])
def test_a_queue_whose_turn_has_not_come_does_not_stand_still(
    seen_group: Group, *, limit: int, stands_still: bool
) -> None:
    group = seen_group([FIRST])
    group.flow(0, 1, 2, then=(100, 40), now=(160, 42))
    group.flow(3, then=(100, 40), now=(160, 40))
    # The samples are 6 s apart.
    group.report(FIRST, held=queues(0, 1, 2, 3), messages_per_s_max=limit)

    assert ("R30" in group.findings()) == stands_still


def test_q07_leaves_messages_alone_that_are_on_their_way(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, 1, 2, 3, then=(1_000, 900), now=(9_000, 8_200))

    assert group.findings() == {}


def test_q07_leaves_messages_alone_that_a_long_call_may_have(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, then=(1_000, 850), now=(1_060, 910))
    assert "Q07" in group.findings()

    group.report(FIRST, paces=(TopicPace("T", 5_000.0, 10.0),))

    assert "Q07" not in group.findings()


def test_q07_warns_where_a_backlog_that_shrinks_takes_hours(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, 1, 2, 3, then=(1_000_000, 500_000), now=(1_000_300, 500_360))

    found = group.findings()["Q07"]

    assert found.severity == Severity.WARN
    assert "at this pace the members catch up in 13.9 h" in found.consequence


def test_q07_advises_no_members_where_one_queue_gets_everything(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, then=(10_000, 1_500), now=(11_200, 1_700))

    found = group.findings()

    assert "more members do not help" in found["Q07"].remedy
    assert "start more members" not in found["Q07"].remedy
    assert found["Q11"].title == "100% of the messages of topic T go into 1 queue"
    assert found["Q11"].members == (FIRST,)
    assert found["Q11"].severity == Severity.WARN


@pytest.mark.parametrize(
    "flows",
    [
        # The same everywhere; less than chance explains; nobody looked twice.
        dict.fromkeys(range(4), ((0, 0), (60, 60))),
        {0: ((0, 0), (30, 30))},
        dict.fromkeys(range(3), ((0, 0), (1, 1))) | {3: ((0, 0), (39, 39))},
        {},
    ],
)
def test_q11_leaves_even_and_little_input_alone(
    seen_group: Group, flows: dict[int, tuple[tuple[int, int], tuple[int, int]]]
) -> None:
    group = seen_group()
    for queue_id, (then, now) in flows.items():
        group.flow(queue_id, then=then, now=now)

    assert "Q11" not in group.findings()


def test_q11_compares_a_queue_with_the_others_alone(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, 1, 2, then=(0, 0), now=(12, 12))
    group.flow(3, then=(0, 0), now=(60, 60))

    assert "Q11" in group.findings()


def test_q11_is_no_warning_while_the_crowded_queue_keeps_up(seen_group: Group) -> None:
    group = seen_group()
    group.flow(2, then=(100, 95), now=(700, 690))

    assert {r: f.severity for r, f in group.findings().items()} == {"Q11": Severity.INFO}


def test_q11_is_no_warning_where_other_queues_got_as_much_before(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, 1, 3, then=(9_000, 9_000), now=(9_000, 9_000))
    group.flow(2, then=(9_000, 9_000), now=(9_600, 9_300))
    batch = group.findings()["Q11"]
    group.flow(0, 1, 3, then=(100, 100), now=(100, 100))

    assert (batch.severity, group.findings()["Q11"].severity) == (Severity.INFO, Severity.WARN)


def test_q10_finds_a_group_that_falls_behind_however_slowly(seen_group: Group) -> None:
    group = seen_group()
    # 4.2 a second come in and 2.1 are consumed: far below what Q07 calls behind.
    group.flow(0, 1, 2, 3, then=(100, 80), now=(106, 83))

    found = group.findings()

    assert found.keys() == {"Q10"}
    assert (
        found["Q10"].consequence
        == "the backlog grows by 7,200 messages every hour if this pace lasts"
    )


def test_what_waits_to_be_committed_is_not_called_growth(seen_group: Group) -> None:
    """Offsets move in steps of five seconds: between two looks most of the input seems to stay."""
    group = seen_group()
    group.flow(0, 1, 2, 3, then=(1_000, 950), now=(1_060, 988))
    view = examine(group.snapshot())

    assert group.findings() == {}
    assert (
        view.describe_backlog(view.progress)
        == "288 messages behind, perhaps consumed but not yet committed"
    )


def test_a_backlog_that_grows_slowly_is_said_to_grow(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, then=(5_000, 1_000), now=(5_601, 1_600))
    view = examine(group.snapshot())

    assert view.describe_backlog(queues(0)) == "4,001 messages behind, growing by 0.2 a second"


def test_nobody_is_said_to_have_consumed_what_no_member_has(seen_group: Group) -> None:
    group = seen_group([FIRST, FIRST])
    group.flow(3, then=(95, 95), now=(100, 95))
    view = examine(group.snapshot())

    assert view.describe_backlog(queues(3)) == "5 messages behind, growing by 0.8 a second"


def test_a_member_that_falls_behind_is_not_said_to_have_consumed(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, then=(1_000, 940), now=(1_060, 942))
    group.flow(2, 3, then=(1_000, 900), now=(1_600, 1_500))
    view = examine(group.snapshot())

    assert "Q07" in group.findings()
    assert view.describe_backlog(view.progress) == "318 messages behind, growing by 9.7 a second"


def test_a_late_message_counts_as_behind_however_few_wait(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, then=(1_000, 970), now=(1_000, 990))
    group.report(FIRST, paces=(TopicPace("T", 2_400.0, 0.4),))

    assert group.findings() == {}
    group.waits_ms[queues(0)[0]] = LATE_MS - 1
    assert group.findings() == {}
    group.waits_ms[queues(0)[0]] = LATE_MS
    assert group.findings().keys() == {"Q07", "Q12"}
    view = examine(group.snapshot())
    assert view.wait_ms(view.user_queues) == LATE_MS
    assert "not yet committed" not in view.describe_backlog(view.user_queues)


def test_q13_says_that_the_listener_fails_in_order_however_many_succeed(
    seen_group: Group,
) -> None:
    group = seen_group()
    group.flow(0, then=(100, 40), now=(160, 40))
    group.flow(1, 2, 3, then=(1_000, 1_000), now=(1_600, 1_600))
    group.report(FIRST, held=queues(0, 1), is_orderly=True, paces=(FAILS,))

    found = group.findings()["Q13"]

    assert found.severity == Severity.ERROR
    assert found.title == "the listener fails, and in order 1 queue stopped"
    assert [" ".join(command.arguments) for command in found.commands] == [
        "msg at T broker-a:0 40",
        "group reset G --topic T --queue broker-a:0 --to 41",
    ]
    # Not in order, other messages pass the one that fails.
    group.reports.clear()
    group.report(FIRST, held=queues(0, 1), is_orderly=False, paces=(FAILS,))
    assert "Q13" not in group.findings()


@pytest.mark.parametrize(("failed_per_s", "fires"), [(0.1, True), (0.08, False)])
def test_q13_counts_the_failures_of_a_minute(
    seen_group: Group, failed_per_s: float, fires: bool
) -> None:
    group = seen_group()
    group.report(FIRST, held=queues(0, 1), paces=(TopicPace("T", 2.0, 0.4, failed_per_s),))

    assert fires == ("Q13" in group.findings())


@pytest.mark.parametrize(
    ("model", "is_orderly", "comes_again"),
    [("CLUSTERING", False, True), (BROADCASTING, False, False), (BROADCASTING, True, True)],
)
def test_q13_promises_no_retry_where_there_is_none(
    seen_group: Group, model: str, is_orderly: bool, comes_again: bool
) -> None:
    group = seen_group(model=model, language="PYTHON")
    group.report(
        FIRST,
        held=queues(0, 1),
        is_orderly=is_orderly,
        paces=(TopicPace("T", 2.0, 1.0, 5.0),),
    )

    found = group.findings()["Q13"]

    assert comes_again == ("comes again until" in found.consequence)
    assert comes_again == ("dead letters" in found.remedy)


@pytest.mark.parametrize(("count", "last"), [(7, "7"), (250_000, "100000")])
def test_q13_sends_no_more_dead_letters_again_than_one_command_may(
    seen_group: Group, count: int, last: str
) -> None:
    seen = seen_group().snapshot()
    letters = DeadLetterCount(count, seen.last.timestamp_ms)
    brokers = (replace(seen.last.brokers[0], dead_letters=letters),)

    (finding,) = diagnose(replace(seen, samples=(replace(seen.last, brokers=brokers),)))

    assert [" ".join(command.arguments) for command in finding.commands] == [
        "dlq show G",
        f"dlq resend G --last {last}",
    ]


def test_q13_counts_no_letters_of_a_broker_that_did_not_answer_before(seen_group: Group) -> None:
    seen = seen_group().snapshot()
    then, now = seen.samples
    letters = DeadLetterCount(7, now.timestamp_ms - LETTER_IS_NEW_MS - 1)
    silent = replace(then.brokers[0], failure="no answer")
    now = replace(now, brokers=(replace(now.brokers[0], dead_letters=letters),))

    titles = []
    for broker in (silent, replace(silent, failure="")):
        samples = (replace(then, brokers=(broker,)), now)
        found = diagnose(replace(seen, samples=samples))
        titles.append([str(each.title) for each in found if each.rule == "Q13"])

    assert titles == [[], ["messages become dead letters: 1.2 a second"]]


def test_a_backlog_that_shrinks_says_how_long_it_takes(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, then=(10_000, 1_000), now=(10_000, 1_600))
    view = examine(group.snapshot())

    words = "8,400 messages behind, shrinking by 100 a second: none left in 84 s"
    assert words == view.describe_backlog(view.progress)


def test_q12_finds_a_listener_that_takes_long_and_is_behind(seen_group: Group) -> None:
    group = seen_group()
    group.flow(0, 1, then=(1_000, 100), now=(1_000, 103))
    slow, quick = TopicPace("T", 2_400.0, 0.4), TopicPace("T", 12.0, 80.0)
    group.report(FIRST, paces=(slow,), thread_count=20)
    group.report(SECOND, paces=(slow,))

    found = group.findings()["Q12"]

    assert found.title == f"the listener of {FIRST} is slow: 2.4 s a call, 20 threads"

    # The second has as slow a listener, and nothing behind.
    assert found.members == (FIRST,)
    assert found.evidence == ("T: 2.4 s per call, 0.4 messages a second",)
    group.reports.clear()
    group.report(FIRST, paces=(quick,))
    assert "Q12" not in group.findings()


def test_q12_names_the_slowest_call_of_a_listener_of_several_topics(seen_group: Group) -> None:
    group = seen_group([FIRST], topics=["T", "U"])
    for topic in group.topics:
        group.flow(0, topic=topic, then=(1_000, 100), now=(1_000, 103))
    group.report(FIRST, paces=(TopicPace("T", 2_400.0, 0.4), TopicPace("U", 1_500.0, 0.4)))

    assert f"{FIRST} is slow: 2.4 s a call" in group.findings()["Q12"].title


def test_q12_finds_a_call_that_does_not_return_where_brokers_know_no_offset(
    seen_group: Group,
) -> None:
    group = seen_group(model="BROADCASTING")
    group.report(FIRST, longest_call_ms=10_000)
    group.report(SECOND, longest_call_ms=9_999)

    found = group.findings()["Q12"]

    assert found.members == (FIRST,)
    assert found.title == f"a call of the listener of {FIRST} has not returned for 10 s"


def test_offsets_that_go_back_are_no_flow(seen_group: Group) -> None:
    group = seen_group()
    group.flow(1, then=(100, 90), now=(100, 60))
    group.flow(2, then=(100, 90), now=(10, 0))

    rates = examine(group.snapshot()).rates

    assert {(r.produced_per_s, r.consumed_per_s) for r in rates.values()} == {(0.0, 0.0)}
    reset = MessageQueue("T", "broker-a", 1)
    assert not rates[reset].stood_still


def test_q08_finds_an_offset_that_went_back(seen_group: Group) -> None:
    group = seen_group()
    group.flow(2, then=(100, 90), now=(100, 60))

    found = group.findings()["Q08"]

    assert found.evidence == ("T at broker-a: 2: from 90 to 60",)
    assert found.consequence == "30 messages may be consumed again"


@pytest.mark.parametrize(("age_ms", "fires"), [(600_000, True), (600_001, False)])
def test_q08_finds_what_somebody_moved_within_ten_minutes(
    seen_group: Group, age_ms: int, fires: bool
) -> None:
    group = seen_group()
    moved_ms = group.snapshot().last.timestamp_ms - age_ms
    change = ProgressChange(moved_ms, "reset", "10.0.0.9:1", "T", moves=((0, 100, 40),))
    group.now["broker-a"] = replace(group.now["broker-a"], changes=(change,))

    found = group.findings().get("Q08")

    assert fires == (found is not None)
    if found is not None:
        assert found.consequence == "60 messages may be consumed again"
    # Dead letters that were sent again have moved no offset of the group.
    again = change._replace(kind="sent again")
    group.now["broker-a"] = replace(group.now["broker-a"], changes=(again,))
    assert "Q08" not in group.findings()


@pytest.mark.parametrize(
    ("moves", "consequence"),
    [
        (((0, 10, 40),), "30 messages may never be consumed by this group"),
        (
            ((0, 10, 40), (1, 90, 70)),
            "20 messages may be consumed again; 30 messages may never be consumed by this group",
        ),
    ],
)
def test_q08_says_what_a_move_forward_skips(
    seen_group: Group, moves: tuple[tuple[int, int, int], ...], consequence: str
) -> None:
    group = seen_group()
    change = ProgressChange(group.snapshot().last.timestamp_ms, "set", "10.0.0.9:1", "T")
    changes = (change._replace(moves=moves),)
    group.now["broker-a"] = replace(group.now["broker-a"], changes=changes)

    assert group.findings()["Q08"].consequence == consequence


def test_findings_come_with_the_worst_first(seen_group: Group) -> None:
    group = seen_group([FIRST, SECOND, SECOND, "10.0.0.3@1", "10.0.0.4@1"])
    group.flow(2, then=(100, 90), now=(100, 60))

    severities = [finding.severity for finding in group.findings().values()]

    assert sorted(severities, reverse=True) == severities
    assert {Severity.ERROR, Severity.WARN} <= set(severities)


def test_queue_is_disputed_where_brokers_lists_differ(seen_group: Group) -> None:
    group = seen_group([FIRST, SECOND], brokers=["broker-a", "broker-b"], queues=2)
    assert frozenset() == compute_ownership(group.snapshot()).disputed

    group.listing("broker-b", [FIRST])

    found = compute_ownership(group.snapshot())
    disputed, *_ = queues(0, broker="broker-b")
    assert set(queues(0, 1, broker="broker-b")) == found.disputed
    assert found.state_of(disputed) is OwnerState.DISPUTED
    for client_id in (FIRST, SECOND):
        group.report(client_id)
    # What is seen comes before what is uncertain.
    assert compute_ownership(group.snapshot()).state_of(disputed) is OwnerState.UNOWNED


def test_member_takes_nothing_of_a_topic_that_it_does_not_subscribe(seen_group: Group) -> None:
    group = seen_group([FIRST, SECOND], topics=["T", "U"])
    group.report(SECOND, expressions={"U": "*"})

    found = compute_ownership(group.snapshot())

    assert set(queues(2, 3)) == set(found.unwanted)
    assert found.shares[queues(2)[0]] == (SECOND,)


def test_member_has_the_retry_topic_though_it_does_not_report_it(seen_group: Group) -> None:
    group = seen_group([FIRST], topics=["T", RETRY])
    group.report(FIRST, expressions={"T": "*"})

    assert compute_ownership(group.snapshot()).unwanted == ()


def test_explanation_follows_the_arithmetic(seen_group: Group) -> None:
    group = seen_group(["c0", "c1", "c1"], queues=8)

    shared, orphan = (explain(group.snapshot(), queue)[0] for queue in queues(4, 7))

    assert shared.owners == ("c1", "c1")
    assert shared.steps[-1] == "so all 2 processes with the id c1 take the queue"
    assert "place 4" in shared.steps[0]
    assert "0. c0, 1. c1, 2. c1" in shared.steps[1]
    assert "8 queues over 3 members are 2 each, remainder 2" in shared.steps[2]
    assert orphan.owners == ()
    assert "nobody takes the share of place 2" in orphan.steps[-2]
    assert orphan.steps[-1] == "so nobody takes the queue"


def test_explanation_ends_with_nobody_where_a_member_does_not_subscribe(seen_group: Group) -> None:
    group = seen_group([FIRST, SECOND], topics=["T", "U"])
    group.report(SECOND, expressions={"U": "*"})

    (told,) = explain(group.snapshot(), queues(3)[0])

    assert told.owners == ()
    assert told.steps[-3].endswith("falls to member 1, who takes places 2, 3")
    assert told.steps[-2] == f"but {SECOND} does not subscribe the topic, and takes no queue of it"
    assert told.steps[-1] == "so nobody takes the queue"


def test_explanation_counts_one_member_and_none(seen_group: Group) -> None:
    alone, nobody = (
        explain(seen_group(ids, queues=8).snapshot(), queues(4)[0])[0] for ids in (["c0"], [])
    )

    assert "AVG: 8 queues over 1 member are 8 each, remainder 0" in alone.steps
    assert nobody.steps[1:] == ("the broker lists 0 members", "so nobody takes the queue")


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_explanation_agrees_with_the_owner_of_every_queue(seen_group: Group, strategy: str) -> None:
    group = seen_group(["c0", "c1", "c2", "c2", "c3"], queues=11, strategy=strategy)
    snapshot = group.snapshot()

    for queue, connections in compute_ownership(snapshot).owners.items():
        told = explain(snapshot, queue)[0]
        ids = [c.client_id for c in connections]
        assert ids == list(told.owners)
        assert f"so {ids[0] if ids else 'nobody'} takes the queue" == told.steps[-1] or len(ids) > 1
        if strategy == "CONSISTENT_HASH":
            assert f"the next node is {ids[0]}-" in told.steps[-2]


@pytest.mark.parametrize(
    "strategy",
    ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "MINIMAL_MOVE", "AVG_BY_LOAD"],
)
def test_every_step_of_an_explanation_can_be_translated(seen_group: Group, strategy: str) -> None:
    chinese = Words("zh")
    told = [
        explain(seen_group(ids, queues=8, strategy=strategy).snapshot(), queues(at)[0])[0]
        for ids in (["c0", "c1", "c2", "c2"], ["c0"], [])
        for at in range(8)
    ]

    for step in {step for each in told for step in each.steps}:
        assert isinstance(step, Phrase)
        assert chinese.phrase(step) != step


def test_explanation_is_given_for_every_list_of_members(seen_group: Group) -> None:
    group = seen_group(brokers=["broker-a", "broker-b"])
    group.listing("broker-b", [FIRST])

    told = explain(group.snapshot(), queues(0, broker="broker-b")[0])

    assert [each.broker_names for each in told] == [("broker-a",), ("broker-b",)]
    assert [each.owners for each in told] == [(SECOND,), (FIRST,)]


@pytest.mark.parametrize(
    ("text", "topic", "message"),
    [
        ("3", None, "write BROKER:ID"),
        ("broker-a:x", None, "write BROKER:ID"),
        pytest.param(f"broker-a:{'9' * 5_000}", None, "write BROKER:ID", id="beyond Python"),
        ("broker-a:9", None, "they divide T at broker-a: 0-3"),
        ("broker-z:0", None, "do not divide queue broker-z:0"),
        ("broker-a:0", "U", "does not consume topic U; it consumes T"),
    ],
)
def test_queue_that_the_group_does_not_divide_is_refused(
    seen_group: Group, text: str, topic: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        find_queue(seen_group().snapshot(), text, topic=topic)


def test_topic_must_be_named_where_there_are_several(seen_group: Group) -> None:
    snapshot = seen_group(topics=["T", "U"]).snapshot()

    with pytest.raises(UsageError, match="name one by --topic"):
        find_queue(snapshot, "broker-a:1")
    assert queues(1, topic="U")[0] == find_queue(snapshot, "broker-a:1", topic="U")


def test_broadcast_and_unknown_strategies_have_no_explanation(seen_group: Group) -> None:
    for group, words in (
        (seen_group(model=BROADCASTING), "every member has every queue"),
        (seen_group(strategy="CONFIG"), "--strategy"),
    ):
        with pytest.raises(UsageError, match=words):
            explain(group.snapshot(), queues(0)[0])


def test_runs_of_numbers_are_written_briefly() -> None:
    runs = [describe_runs(numbers) for numbers in ([], [3], [0, 1, 2, 5, 7, 8])]

    assert runs == ["", "3", "0-2, 5, 7, 8"]
