"""Joins, leaves and kills simulated: shares, moves, costs, split views, duplicate ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.doctor.whatif import (
    ALL_NAMES,
    KAFKA_NAMES,
    SERVER_NAME,
    SPARROW_NAMES,
    Cost,
    GroupEvent,
    GroupEventKind,
    Plan,
    Step,
    StrategyRun,
    check_strategy,
    parse_events,
    simulate,
    simulate_all,
)
from sparrowmq.errors import ConfigError


def plan(queues: int, members: int, events: str = "", **more: object) -> Plan:
    return Plan(
        queue_count=queues,
        member_count=members,
        events=parse_events(events),
        **more,  # type: ignore[arg-type]
    )


def shares(step: Step) -> list[list[int]]:
    """The queue ids of each member, in id order."""
    return [[q.queue_id for q in step.queue_ids(member.number)] for member in step.members]


def run_of(strategy: str, *what: object, **more: object) -> StrategyRun:
    return simulate(plan(*what, **more), strategy)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("queues", "members", "counts"),
    [(12, 5, [3, 3, 2, 2, 2]), (13, 5, [3, 3, 3, 2, 2]), (7, 2, [4, 3]), (2, 3, [1, 1, 0])],
)
def test_average_shares_of_the_worked_examples(
    queues: int, members: int, counts: list[int]
) -> None:
    step = run_of("AVG", queues, members).steps[0]

    assert counts == [len(share) for share in shares(step)]
    assert (counts[0] - counts[-1], counts.count(0)) == (step.skew, step.idle)


def test_two_equal_ids_share_the_first_part_and_leave_the_second() -> None:
    by_average = run_of("AVG", 4, 2, has_duplicate_id=True).steps[0]
    by_circle = run_of("AVG_BY_CIRCLE", 8, 3, has_duplicate_id=True).steps[0]
    by_kafka = run_of("range", 4, 2, has_duplicate_id=True).steps[0]

    assert shares(by_average) == [[0, 1], [0, 1]]
    assert [queue.queue_id for queue in by_average.unowned] == [2, 3]
    # Members in id order: the first twice, then the other.
    assert shares(by_circle) == [[0, 3, 6], [0, 3, 6], [2, 5]]
    assert [queue.queue_id for queue in by_circle.unowned] == [1, 4, 7]
    assert (by_kafka.unowned, by_kafka.double) == ([], [])


def test_members_that_join_after_a_duplicate_id_have_ids_of_their_own() -> None:
    step = run_of("AVG", 4, 3, "join,join", has_duplicate_id=True).steps[-1]

    ids = [member.client_id for member in step.members]
    assert (len(ids), len(set(ids))) == (5, 4)


@pytest.mark.parametrize(
    ("strategy", "first", "after", "needless"),
    [
        ("AVG", [[0, 1, 2], [3, 4], [5, 6]], [[0, 1, 2, 3], [4, 5, 6]], 0),
        ("range", [[0, 1, 2], [3, 4], [5, 6]], [[0, 1, 2, 3], [4, 5, 6]], 0),
        ("AVG_BY_CIRCLE", [[0, 3, 6], [1, 4], [2, 5]], [[0, 2, 4, 6], [1, 3, 5]], 2),
        ("roundrobin", [[0, 3, 6], [1, 4], [2, 5]], [[0, 2, 4, 6], [1, 3, 5]], 2),
    ],
)
def test_second_of_three_members_leaves_seven_queues(
    strategy: str, first: list[list[int]], after: list[list[int]], needless: int
) -> None:
    steps = run_of(strategy, 7, 3, "leave:1").steps

    assert [shares(step) for step in steps] == [first, after]
    assert needless == steps[1].needless


@pytest.mark.parametrize("strategy", ["sticky", "cooperative-sticky"])
def test_sticky_moves_nothing_that_stays(strategy: str) -> None:
    steps = run_of(strategy, 7, 3, "leave:1,join").steps

    assert steps[1].moved == 0
    assert steps[2].needless == 0
    assert steps[2].skew == 1


def test_cost_of_rocketmq_follows_the_model() -> None:
    # BrokerCondition to 2 brokers; each notifies every member; every member asks for the list.
    steps = run_of("AVG", 8, 3, "join,leave:0,kill:0", broker_count=2).steps
    join, leave, kill = steps[1:]

    def agreed(told: int, members: int, changed: int) -> int:
        return told + 2 * members + 2 * members + 3 * changed

    def changed(before: Step, after: Step) -> int:
        return sum(set(before.owners[queue]) != set(after.owners[queue]) for queue in after.owners)

    assert agreed(4, 4, changed(steps[0], join)) == join.cost.messages
    assert agreed(4, 3, changed(join, leave)) == leave.cost.messages
    assert agreed(0, 2, changed(leave, kill)) == kill.cost.messages
    assert [step.cost.trips for step in steps[1:]] == [4, 4, 3]
    assert {step.cost.wait_ms_max for step in steps[1:]} == {20_000}
    assert [step.moved for step in steps[1:]] == [step.cost.overlapping for step in steps[1:]]


def test_cost_of_kafka_stops_the_group_or_its_moving_queues() -> None:
    eager = run_of("range", 8, 3, "join").steps[1]
    gentle = run_of("cooperative-sticky", 8, 3, "join").steps[1]

    # Find, join twice; three heartbeats; all join and sync; three commits, four fetches.
    assert eager.cost == Cost(4 + 6 + 16 + 14, 5, 303_000, 8, 0)
    # A second round, and four frames for each of the two queues that move.
    assert gentle.moved == 2
    assert gentle.cost == Cost(4 + 6 + 32 + 8, 9, 606_000, 2, 0)
    killed = run_of("range", 8, 3, "kill").steps[1]
    assert killed.cost.wait_ms_max == 348_000


def test_cost_of_kafka_4_stops_moving_queues_and_waits_for_no_poll() -> None:
    steps = run_of("uniform", 8, 3, "join,leave:1,kill").steps
    join, leave, kill = steps[1:]

    # Find, heartbeat; three heartbeats; two givers and a taker; four frames for each moved queue.
    assert join.moved == 2
    assert join.cost == Cost(4 + 6 + 2 * 3 + 8, 9, 10_000, 2, 0)
    # A leaver's two queues go to members at their next heartbeat, and nothing else moves.
    assert leave.moved == 0
    assert leave.cost == Cost(2 + 6 + 4 * 2, 3, 5_000, 0, 0)
    assert kill.cost.trips == 2
    assert kill.cost.wait_ms_max == 50_000


def test_cost_of_kafka_4_has_no_wait_where_a_member_joins_for_whom_there_is_no_queue() -> None:
    join = run_of("uniform", 2, 3, "join").steps[1]

    assert (join.moved, join.cost.wait_ms_max) == (0, 0)


def test_nothing_moves_where_no_queue_has_an_owner() -> None:
    steps = run_of("POP", 2, 3, "join,leave:1,kill", broker_count=2).steps
    join, leave, kill = steps[1:]

    for step in steps:
        numbers = [member.number for member in step.members]
        assert [step.queue_ids(number) for number in numbers] == [list(step.owners)] * len(numbers)
        assert (step.moved, step.idle, step.skew, step.unowned, step.double) == (0, 0, 0, [], [])
        assert step.split == (0, 0, 0)
    # Two frames to each of two brokers; each notifies every member, who asks one of them.
    assert join.cost == Cost(4 + 8 + 8, 4, 0, 0, 0)
    assert leave.cost == Cost(4 + 6 + 6, 0, 0, 0, 0)
    # What the killed member had in flight comes again after its invisible time.
    assert kill.cost == Cost(4 + 4, 0, 60_000, 0, 0)


def test_split_view_harms_whom_nobody_coordinates() -> None:
    runs = {run.strategy: run for run in simulate_all(plan(8, 3))}

    splits = {name: run.steps[0].split for name, run in runs.items()}
    # The coordinator has not heard of one member, which waits.
    assert {splits[name] for name in (*KAFKA_NAMES, SERVER_NAME)} == {(0, 0, 1)}
    # AVG of three is 0-2, 3-5, 6-7; the first, of two, takes 0-3.
    assert splits["AVG"] == (0, 1, 0)
    assert {splits[name].double for name in SPARROW_NAMES} == {0}


def test_member_that_kafkas_coordinator_does_not_know_is_idle_beside_those_without_a_queue() -> (
    None
):
    assert run_of("range", 2, 5).steps[0].split == (0, 0, 3)


def test_members_take_the_queues_of_their_own_machine_room() -> None:
    step = run_of("MACHINE_ROOM_NEARBY-AVG", 8, 4, broker_count=2, room_count=2).steps[0]

    for member in step.members:
        room = member.client_id.partition("-")[0]
        assert {q.broker_name.partition("@")[0] for q in step.queue_ids(member.number)} == {room}


def test_owners_known_minimal_move_moves_what_it_must() -> None:
    steps = run_of("MINIMAL_MOVE", 8, 3, "join,leave:1,kill:0,join").steps

    assert [step.needless for step in steps] == [0] * 5
    # Two of a newcomer's; then nothing that stays moves.
    assert [step.moved for step in steps] == [0, 2, 0, 0, 2]


def test_cost_of_ours_adds_owners_and_locks_and_lets_nothing_overlap() -> None:
    join = run_of("MINIMAL_MOVE", 8, 3, "join", broker_count=2).steps[1]

    # BrokerCondition to 2 brokers; each notifies every member; every member asks each of both.
    assert join.cost == Cost(4 + 8 + 16 + 8 * 2, 4, 20_000, 2, 0)


def test_config_leaves_the_queues_of_a_member_that_left() -> None:
    steps = run_of("CONFIG", 6, 3, "leave:0,join").steps

    assert [queue.queue_id for queue in steps[1].unowned] == [0, 3]
    # Nobody told the new member what it should have.
    assert (len(steps[2].unowned), steps[2].idle) == (2, 1)


@given(
    queues=st.integers(1, 40),
    members=st.integers(1, 9),
    events=st.lists(st.sampled_from(["join", "leave", "kill"]), max_size=4),
    brokers=st.integers(1, 3),
    rooms=st.integers(1, 2),
)
def test_every_queue_has_one_owner_after_every_event(
    queues: int, members: int, events: list[str], brokers: int, rooms: int
) -> None:
    brokers = min(brokers, queues)
    chosen = plan(
        queues,
        members + len(events),
        ",".join(events),
        broker_count=brokers,
        room_count=min(rooms, brokers),
    )

    for run in simulate_all(chosen):
        for step in run.steps:
            assert run.strategy == "CONFIG" or (step.unowned, step.double) == ([], [])
            assert step.needless <= step.moved <= queues


def test_schools_are_told_apart() -> None:
    schools = {run.strategy: run.school for run in simulate_all(plan(4, 2))}

    assert list(ALL_NAMES) == list(schools)
    assert {schools[name] for name in SPARROW_NAMES} == {"sparrowmq"}
    assert {schools[name] for name in KAFKA_NAMES} == {"kafka"}
    assert schools["AVG"] == "rocketmq"
    assert (schools[SERVER_NAME], schools["POP"]) == ("kafka 4", "rocketmq 5")


def test_events_are_read_and_wrong_ones_refused() -> None:
    assert parse_events(" join, leave:2 ,kill,") == (
        GroupEvent(GroupEventKind.JOIN),
        GroupEvent(GroupEventKind.LEAVE, 2),
        GroupEvent(GroupEventKind.KILL),
    )
    for text in ("leaf", "join:1", "leave:x", "kill:-1", "leave:1234567"):
        with pytest.raises(ConfigError, match="event"):
            parse_events(text)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"queues": 0, "members": 1}, "queues is 0"),
        ({"queues": 4, "members": 0}, "members is 0"),
        ({"queues": 4, "members": 1, "broker_count": 5}, "brokers is 5"),
        ({"queues": 4, "members": 1, "room_count": 2}, "rooms is 2"),
        ({"queues": 4, "members": 1, "has_duplicate_id": True}, "--members 2"),
        ({"queues": 10_000, "members": 50, "events": "join"}, "must be from 1 to 5000"),
    ],
)
def test_plans_that_cannot_be_are_refused(what: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(**what)  # type: ignore[arg-type]


def test_member_beyond_the_most_is_refused() -> None:
    with pytest.raises(ConfigError, match="members is 1001"):
        simulate(plan(1, 1_000, "join"), "AVG")


def test_strategy_is_found_by_its_name_in_any_case() -> None:
    assert check_strategy("avg") == "AVG"
    assert check_strategy("MACHINE_ROOM_NEARBY") == "MACHINE_ROOM_NEARBY-AVG"
    assert (
        check_strategy("MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE") == "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE"
    )
    with pytest.raises(ConfigError, match="did you mean cooperative-sticky"):
        check_strategy("coop-sticky")


def test_page_on_the_schools_shows_what_the_simulation_gives() -> None:
    page = Path(__file__).parents[2] / "docs" / "explanation" / "four-schools.md"
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.read_text().splitlines()
        if line.startswith("| `")
    ]
    shown = plan(12, 3, "join,leave:1,kill", broker_count=2)

    assert len(rows) == 10
    for name, *figures in rows:
        steps = simulate(shown, name.strip("`")).steps
        events = steps[1:]
        split = max((s.split for s in steps), key=lambda s: (s.unowned + s.double, s.idle))
        assert figures == [
            str(sum(s.moved for s in events)),
            str(sum(s.needless for s in events)),
            str(max(s.skew for s in steps)),
            str(sum(s.cost.messages for s in events)),
            str(max(s.cost.trips for s in events)),
            f"{max(s.cost.wait_ms_max for s in events) // 1000} s",
            str(sum(s.cost.stopped for s in events)),
            str(sum(s.cost.overlapping for s in events)),
            " / ".join(map(str, split)),
        ]


def test_an_event_names_a_member_by_its_place_in_the_order_of_ids() -> None:
    before, after = run_of("AVG", 12, 12, "leave:1").steps

    (gone,) = set(before.members) - set(after.members)
    # Sorted as Java sorts text.
    assert gone.client_id == sorted(m.client_id for m in before.members)[1] == "10.0.0.11@111"


def test_a_duplicate_id_costs_queues_by_a_list_of_members_and_none_by_lists_of_queues() -> None:
    by_list, by_config = (
        run_of(name, 4, 2, has_duplicate_id=True).steps[0] for name in ("AVG", "CONFIG")
    )

    assert [[q.queue_id for q in some] for some in (by_list.double, by_list.unowned)] == [
        [0, 1],
        [2, 3],
    ]
    assert (by_config.double, by_config.unowned) == ([], [])
