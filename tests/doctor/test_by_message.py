"""Groups that consume by message: no view says that nobody consumes or that owners are missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from commands import Commands
from live_page import reading
from sparrowmq import Message, MessageExt, Producer, PushConsumer, SimpleConsumer
from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.doctor import Finding, Severity, diagnose
from sparrowmq.doctor.group_snapshot import DeadLetterCount, ProgressChange
from sparrowmq.doctor.group_view import examine
from sparrowmq.exporter.watch import ClusterWatch
from sparrowmq.testing import EmbeddedCluster
from steps_of_pages import words_of
from waiting import wait_until

SENT, RECEIVED = 10, 6
GROUP, TOPIC = "GID_popped", "popped"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster whose group has acknowledged the second and third of its six messages.

    The group has extended the time of the first one twice.
    """
    with EmbeddedCluster(flush="async") as running:
        running.create_topic(TOPIC, queues=1)
        with Producer("GID_p", name_server=running.name_server) as producer:
            for number in range(SENT):
                producer.send(Message(TOPIC, b"%d" % number))
        with SimpleConsumer(GROUP, name_server=running.name_server) as consumer:
            consumer.subscribe(TOPIC)
            found: list[MessageExt] = []

            def has_all() -> bool:
                found.extend(consumer.receive(RECEIVED - len(found)))
                return len(found) == RECEIVED

            wait_until("messages", has_all)
            by_offset = sorted(found, key=lambda message: message.queue_offset)
            for message in by_offset[1:3]:
                consumer.ack(message)
            renewed = by_offset[0]
            for minutes in (5, 10):
                renewed = consumer.change_invisible(renewed, timedelta(minutes=minutes))
            # A time that is shorter than what is left is not a renewal.
            consumer.change_invisible(renewed, timedelta(minutes=4))
            yield running


@pytest.fixture
def smq(cluster: EmbeddedCluster) -> Commands:
    return Commands(cluster.name_server)


def test_the_doctor_tells_of_messages_in_flight_and_finds_nothing_wrong(smq: Commands) -> None:
    found = smq.json("rebalance", "doctor", GROUP, "--interval", "0")

    (finding,) = found["findings"]
    assert (finding["rule"], finding["severity"]) == ("R32", "info")
    flying, oldest, invisible, renewed, listed = finding["evidence"]
    assert flying == "4 messages in flight, 4 messages not given out yet"
    first = f"{TOPIC} at broker-a: 0"
    assert re.fullmatch(f"the oldest of them, in {first}, was stored [\\d.]+ m?s ago", oldest)
    assert re.fullmatch(r"invisible to others for at most (4 min|[\d.]+ s) more", invisible)
    assert renewed == "their times were extended 2 times"
    assert listed.endswith("consumers that only pop are not listed")
    assert found["lag"] == SENT - 2, "acknowledged messages are done, whatever is before them"
    assert found["is_by_message"] is True


def test_every_list_has_what_is_in_flight_and_no_false_member_count(smq: Commands) -> None:
    (row,) = [row for row in smq.json("ls")["groups"] if row["group"] == GROUP]
    shown = smq.json("rebalance", "show", GROUP, "--interval", "0")
    text = smq("rebalance", "show", GROUP, "--interval", "0").stdout
    (lag,) = smq.json("group", "lag", GROUP)

    assert (lag["lag"], lag["in_flight"], lag["renewals"]) == (SENT - 2, 4, 2)
    assert row["oldest_in_flight_timestamp_ms"] == lag["oldest_in_flight_timestamp_ms"] > 0
    assert row["renewals"] == 2
    assert (row["lag"], row["in_flight"], row["member_count"]) == (SENT - 2, 4, None)
    assert row["trouble"] == ""
    (queue,) = shown["queues"]
    assert (queue["state"], queue["in_flight"], queue["lag"]) == ("shared", 4, SENT - 2)
    assert queue["oldest_in_flight_timestamp_ms"] == row["oldest_in_flight_timestamp_ms"]
    assert queue["renewals"] == 2
    assert re.search(r"by message: 4 in flight, the oldest stored [\d.]+ m?s ago", text)
    assert "any member" in text
    assert "nobody" not in text


def test_a_check_finds_the_group_consumed(smq: Commands) -> None:
    result = smq("check", "--group", GROUP, "--warn-lag", "5", "--max-lag", "100")

    assert "nobody consumes" not in result.stdout
    assert result.exit_code == 1, "its lag alone is a warning, and not critical"


def test_no_queue_has_a_reason_for_its_owner(smq: Commands) -> None:
    result = smq("rebalance", "explain", GROUP, "--queue", "broker-a:0")

    assert result.exit_code == 2
    assert "consumes by message: any member may receive any message" in result.stderr


async def test_the_page_shows_messages_in_flight_in_the_place_of_owners(
    cluster: EmbeddedCluster,
) -> None:
    async with reading(cluster.name_server) as reader:
        text = await reader.read(f"/groups/{GROUP}")
        await reader.watcher.look_now(GROUP)
        page = words_of(await reader.read(f"/groups/{GROUP}"))

    assert "4 messages in flight" in page
    assert re.search(f"[\\d.]+ m?s age of the oldest, in {TOPIC} at broker-a: 0", page)
    assert "2 renewals of those in flight" in page
    assert "any member" in page
    assert "queues without owner" not in page
    assert "nobody" not in page, "neither in the legend nor in the timeline"
    assert "explain=" not in text


async def test_metrics_have_messages_in_flight_and_no_owners(cluster: EmbeddedCluster) -> None:
    registry = CollectorRegistry()
    async with AsyncDriver() as driver:
        watch = ClusterWatch(make_directory(cluster.name_server), driver, interval_s=1.0)
        registry.register(watch)
        await watch.look()

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(name, labels)

        of_queue = {"group": GROUP, "topic": TOPIC, "broker": "broker-a", "queue": "0"}
        assert value("sparrowmq_group_in_flight", group=GROUP) == 4
        assert value("sparrowmq_group_renewals", group=GROUP) == 2
        assert (value("sparrowmq_group_oldest_in_flight_seconds", group=GROUP) or 0) > 0
        assert value("sparrowmq_group_members", group=GROUP) is None
        assert value("sparrowmq_unowned_queues", group=GROUP) == 0
        assert value("sparrowmq_queue_owners", **of_queue) is None
        assert value("sparrowmq_queue_lag", **of_queue) == SENT - 2


def test_a_group_that_pulls_is_not_by_message(cluster: EmbeddedCluster, smq: Commands) -> None:
    group = "GID_pulled"
    with PushConsumer(
        group, TOPIC, name_server=cluster.name_server, listener=lambda messages, context: None
    ) as member:
        member.wait_assigned()
        shown = smq.json("rebalance", "show", group, "--interval", "0")

    assert shown["is_by_message"] is False
    assert "shared" not in {queue["state"] for queue in shown["queues"]}


def test_a_disabled_group_by_message_is_not_said_to_miss_its_consumers_alone(
    cluster: EmbeddedCluster, smq: Commands
) -> None:
    group = "GID_disabled"
    with SimpleConsumer(group, name_server=cluster.name_server) as consumer:
        consumer.subscribe(TOPIC)
        wait_until("a message", lambda: consumer.receive(1))
    smq("group", "update", group, "--disable", "--yes")

    found = smq.json("rebalance", "doctor", group, "--interval", "0")["findings"]

    assert found[0]["rule"] == "Q16"
    assert "members are connected" not in found[0]["consequence"]


def found_in(seen: Any, *, is_popped: bool = False, **flights: int) -> list[Finding]:
    """Return the findings of a group whose first queue has these messages in flight."""
    snapshot = seen.snapshot()
    first, *others = snapshot.last.progress
    last = replace(
        snapshot.last,
        brokers=tuple(replace(b, is_popped=is_popped) for b in snapshot.last.brokers),
        progress=(first._replace(**flights), *others),
    )
    return diagnose(replace(snapshot, samples=(*snapshot.samples[:-1], last)))


def test_messages_in_flight_without_pops_mean_that_the_consumers_are_gone(
    seen_group: Any,
) -> None:
    seen = seen_group([])
    seen.flow(0, then=(200, 100), now=(200, 100))

    gone, there = found_in(seen, in_flight=3), found_in(seen, in_flight=3, is_popped=True)

    assert [(f.rule, f.severity) for f in gone] == [
        ("Q04", Severity.ERROR),
        ("R32", Severity.INFO),
    ]
    assert [f.rule for f in there] == ["R32"]


def test_messages_left_in_flight_hide_no_fault_of_members_that_pull(seen_group: Any) -> None:
    seen = seen_group()
    seen.flow(0, 1, 2, 3, then=(200, 100), now=(200, 100))
    # Members by message whose listeners hang have popped nothing lately either.
    assert [f.rule for f in found_in(seen, in_flight=3)] == ["R32"]

    held = seen.topics["T"].subscribe_queues
    for client_id, mine in (("10.0.0.1@1", held[:2]), ("10.0.0.2@1", held[2:])):
        seen.report(client_id, held=mine, cached=9)

    assert [f.rule for f in found_in(seen, in_flight=3)] == ["Q06"]
    assert [f.rule for f in found_in(seen, in_flight=3, is_popped=True)] == ["R32"]


def test_offsets_that_move_without_a_member_show_pops_on_other_brokers(
    seen_group: Any,
) -> None:
    seen = seen_group([])
    seen.flow(0, then=(200, 100), now=(200, 160))

    (finding,) = found_in(seen)

    assert finding.rule == "R32"
    # A query of Spark that commits offsets moves them too.
    assert str(finding.title).startswith("offsets move, and no member is connected")
    assert str(finding.evidence[0]) == "40 messages behind"


def test_a_first_commit_without_a_member_shows_no_pops(seen_group: Any) -> None:
    seen = seen_group([])
    seen.flow(0, then=(200, None), now=(200, 60))

    assert [finding.rule for finding in found_in(seen)] == ["Q04"]


def test_a_backlog_that_grows_is_a_warning(
    seen_group: Any,
) -> None:
    seen = seen_group([])
    seen.flow(0, then=(1_000, 100), now=(1_600, 160))

    found = found_in(seen, is_popped=True)

    assert [(f.rule, f.severity) for f in found] == [
        ("Q10", Severity.WARN),
        ("R32", Severity.INFO),
    ]
    assert found[0].remedy.endswith("start more consumers")


def found_flying(seen: Any, *, is_popped: bool = True, **flights: int) -> list[Finding]:
    """Return the findings of a group whose first queue had these messages in flight all along."""
    snapshot = seen.snapshot()
    samples = tuple(
        replace(
            sample,
            brokers=tuple(replace(b, is_popped=is_popped) for b in sample.brokers),
            progress=(sample.progress[0]._replace(**flights), *sample.progress[1:]),
        )
        for sample in snapshot.samples
    )
    return diagnose(replace(snapshot, samples=samples))


def test_messages_that_nobody_acknowledges_are_a_warning(seen_group: Any) -> None:
    seen = seen_group([])
    seen.flow(0, then=(200, 100), now=(200, 100))

    found, known = found_flying(seen, in_flight=30, acknowledged=2, deliveries=5)

    assert [(f.rule, f.severity) for f in (found, known)] == [
        ("Q21", Severity.WARN),
        ("R32", Severity.INFO),
    ]
    assert list(map(str, found.evidence)) == [
        "T at broker-a: 0: 30 messages in flight, one of them delivered 5 times",
        "none was acknowledged within 6.0 s",
    ]
    assert [each.arguments for each in found.commands] == [("msg", "at", "T", "broker-a:0", "100")]


@pytest.mark.parametrize(
    "flights",
    [
        # Each is worked on for the first time, or failed a few times.
        {"in_flight": 30, "deliveries": 1},
        {"in_flight": 30, "deliveries": 4},
        # One message fails, and those behind it are done.
        {"in_flight": 8, "acknowledged": 60, "deliveries": 9},
        # Nobody receives any more, which Q04 says.
        {"in_flight": 30, "deliveries": 9, "is_popped": False},
    ],
)
def test_slow_work_and_one_failing_message_are_no_warning(
    seen_group: Any, flights: dict[str, Any]
) -> None:
    seen = seen_group([])
    seen.flow(0, then=(200, 100), now=(200, 100))

    assert "Q21" not in {finding.rule for finding in found_flying(seen, **flights)}


@pytest.mark.parametrize(("interval_ms", "committed"), [(6_000, 101), (0, 100)])
def test_what_moves_or_was_seen_once_is_no_warning(
    seen_group: Any, interval_ms: int, committed: int
) -> None:
    seen = seen_group([], interval_ms=interval_ms)
    seen.flow(0, then=(200, 100), now=(200, committed))

    found = found_flying(seen, in_flight=30, deliveries=9)

    assert "Q21" not in {finding.rule for finding in found}


def test_the_oldest_message_in_flight_is_that_of_all_queues(seen_group: Any) -> None:
    seen = seen_group([])
    seen.now["broker-a"] = replace(seen.now["broker-a"], is_popped=True)
    snapshot = seen.snapshot()
    last, now_ms = snapshot.last, snapshot.last.timestamp_ms
    progress = [
        each._replace(in_flight=1, oldest_timestamp_ms=now_ms - age_ms)
        for each, age_ms in zip(last.progress, (5_000, 70_000, 9_000, 8_000), strict=True)
    ]
    flying = replace(snapshot, samples=(replace(last, progress=tuple(progress)),))

    assert examine(flying).oldest_in_flight == (last.progress[1].queue, 70_000)
    assert examine(snapshot).in_flight == 0, "the broker says that none is"


def test_a_reset_and_messages_that_expired_are_told_by_message_too(seen_group: Any) -> None:
    seen = seen_group([])
    seen.flow(0, then=(200, 100), now=(200, 100))
    at_ms = seen.snapshot().last.timestamp_ms
    moved = ProgressChange(at_ms, "reset", "10.0.0.9:1", "T", moves=((0, 200, 100),))
    seen.now["broker-a"] = replace(seen.now["broker-a"], changes=(moved,))

    found = {finding.rule for finding in found_flying(seen, expired=20)}

    assert found == {"Q08", "Q22", "R32"}
    # Those in flight may be the ones that expired.
    assert "Q22" not in {each.rule for each in found_flying(seen, in_flight=30, expired=20)}


def test_dead_letters_by_message_explain_the_messages_that_come_again(seen_group: Any) -> None:
    seen = seen_group([])
    seen.flow(0, then=(200, 100), now=(200, 100))
    at_ms = seen.snapshot().last.timestamp_ms
    letters = DeadLetterCount(3, at_ms - 60_000)
    for views in (seen.then, seen.now):
        views["broker-a"] = replace(views["broker-a"], dead_letters=letters)

    cause, _ = found_flying(seen, in_flight=30, deliveries=9)

    assert (cause.rule, [effect.rule for effect in cause.effects]) == ("Q13", ["Q21"])
    assert "whether consumers acknowledge each message in its time" in cause.remedy


@pytest.mark.parametrize(
    ("left_ms", "deliveries", "told"),
    [
        (90_000, 1, ["invisible to others for at most 90 s more"]),
        (
            -1,
            4,
            [
                "their time is over: the next consumer gets them",
                "one of them was delivered 4 times",
            ],
        ),
        (None, 0, []),
    ],
)
def test_what_is_known_about_messages_in_flight_is_told(
    seen_group: Any, left_ms: int | None, deliveries: int, told: list[str]
) -> None:
    seen = seen_group([])
    seen.flow(0, then=(200, 100), now=(200, 100))
    now_ms = seen.snapshot().last.timestamp_ms
    until_ms = 0 if left_ms is None else now_ms + left_ms

    (finding,) = found_in(
        seen,
        is_popped=True,
        in_flight=3,
        visible_timestamp_ms=until_ms,
        deliveries=deliveries,
    )

    assert list(map(str, finding.evidence[1:-1])) == told
