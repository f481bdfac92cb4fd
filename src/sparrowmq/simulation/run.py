"""One run: a seed's scenario, a time of faults, the heal, and the demands after the heal.

Tests: test_runs.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import NamedTuple

from sparrowmq.broker.broker import REGISTRATION_RETRY_MS, SCAN_INTERVAL_MS
from sparrowmq.broker.config import BrokerConfig
from sparrowmq.client.config import ConsumerConfig
from sparrowmq.coordination.member_marker import MARKED_EXPIRY_MS
from sparrowmq.membership.owned_queue import LAST_COMMIT_MS
from sparrowmq.simulation.checkers import Checkers
from sparrowmq.simulation.cluster import Scenario, SimulatedCluster
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.faults import (
    TIMED_FAULTS,
    Faults,
    describe,
    draw_delay_faults,
    draw_faults,
    draw_graceful_faults,
    draw_kill_faults,
    draw_lock_faults,
    draw_power_faults,
    draw_prompt_faults,
    draw_retry_faults,
    keep_only,
)
from sparrowmq.simulation.injector import Injector
from sparrowmq.simulation.transaction_producers import CHECK_INTERVAL_MS, SHORT_INTERVAL_MS
from sparrowmq.simulation.virtual_time import START_MS
from sparrowmq.simulation.workload import LISTENER_MS_MAX

_DEFAULTS = ConsumerConfig(group="GID_any", client_id="any")
# From the heal until every queue has exactly one owner for good. Brokers forget the members that
# are gone; members with an incomplete route ask again, at doubled intervals.
OWNERSHIP_BOUND_MS = 30_000
assert MARKED_EXPIRY_MS + SCAN_INTERVAL_MS < OWNERSHIP_BOUND_MS
# Members hear of queues that came by the heal with their next route.
NEW_QUEUES_MS = _DEFAULTS.times.route_refresh_ms
# A name server that has started again hears of a broker by the next registration, or by a second
# one, if the broker learns by the first that its connection is gone.
ROUTES_BOUND_MS = BrokerConfig().registration_interval_ms + 2 * REGISTRATION_RETRY_MS
# The same if members only came and went: brokers notify the others at once. But a member stays
# listed until its slowest listener has ended and its last offset is committed, or until the bounds
# for both have passed.
GRACEFUL_OWNERSHIP_BOUND_MS = _DEFAULTS.drain_timeout_ms + LAST_COMMIT_MS + 1_000
assert _DEFAULTS.rebalance_interval_ms > GRACEFUL_OWNERSHIP_BOUND_MS
# From that instant, or from the last send, until every message is consumed: the pulls that wait,
# and a third retry. A retry that waits already may be a later one: with a message that fails, the
# others of its call come again.
CONSUMPTION_BOUND_MS = 2 * _DEFAULTS.pull_timeout_ms
RETRY_BOUND_MS = 60_000
# The share of runs that last longer than a silent member is kept in the group.
_LONG_SHARE = 0.2
# The longest calls of the listener, by run; all end before a drain's bound.
_LISTENER_MS_MAX = (LISTENER_MS_MAX, LISTENER_MS_MAX, 300, 3_000)
# The share of runs in which each queue is consumed in order.
_ORDERLY_SHARE = 0.2
# The share of runs with a strategy that uses the owners of queues.
_OWNERS_SHARE = 0.2
_OWNERS_STRATEGIES = ("MINIMAL_MOVE", "AVG_BY_LOAD", "AVG_BY_LOAD")
# The share of runs whose brokers gather the notices of their small group, as those of a large one.
_GATHERED_SHARE = 0.3
_NOTICE_PAUSE_MS = 100
# The share of runs with unnoticed faults in which messages expire, consumed or not.
_EXPIRY_SHARE = 0.2
# The share of runs in which clocks jump; those of brokers only beside unnoticed faults.
_CLOCKS_SHARE = 0.3
# The share of runs with unnoticed faults in which clocks are set far back, or have other speeds.
_WRONG_CLOCKS_SHARE = 0.2
# The share of runs with transactions, and the most kills of their producers per minute.
_TRANSACTIONS_SHARE = 0.3
_PRODUCER_CRASHES_MAX = 6.0
# The share of runs with users that consume by messages, and how many there are.
_POPS_SHARE, _POP_USERS = 0.15, 6
# The share of runs with two name servers, and the highest rates of their faults.
_NAME_SERVERS_SHARE = 0.25
_NAME_SERVER_RATES = {"name_server_kill": 2.0, "name_server_away": 2.0, "name_server_behind": 3.0}
# The share of runs whose topic gets more queues and fewer, and the highest rate of both.
_QUEUES_SHARE, _QUEUES_RATE = 0.2, 4.0
# The time between two looks at the world after the heal.
LOOK_MS = 500
# The share of runs whose members share one client id.
_DUPLICATE_SHARE = 0.1
# The kinds of faults: in ten of thirteen runs only one kind, but often, to exercise its checks.
FAULT_KINDS = (
    draw_power_faults,
    draw_prompt_faults,
    draw_lock_faults,
    draw_graceful_faults,
    draw_delay_faults,
    draw_kill_faults,
    draw_power_faults,
    draw_graceful_faults,
    draw_retry_faults,
    draw_kill_faults,
    *3 * (draw_faults,),
)
# The shares of delayed messages, and the numbers of retries before a dead letter, by run.
_DELAYED_SHARES = (0.0, 0.0, 0.3)
_RETRIES_MAX = (None, None, 1)
# The messages of each producer in runs whose brokers write much.
BUSY_MESSAGE_COUNT = 300
# What many runs together must come to: a situation that none meets is not proved.
SITUATIONS = (
    *TIMED_FAULTS,
    "name servers changed",
    "old routes given",
    "messages delivered again",
    "messages sent back",
    "messages expired",
    "messages lost with a log's end",
    "dead letters",
    "offsets set back",
    "transactions committed",
    "transactions rolled back",
    "transactions discarded",
    "messages delayed",
    "messages recalled",
    "messages popped",
    "messages popped again",
    "dead letters of pops",
    "plans followed",
    *("DuplicateClientId notices", "DrainTimedOut notices", "QueueLost notices"),
    *("OffsetCorrected notices", "CommitLost notices", "NotListed notices"),
)
STRATEGIES = ("AVG", "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH")


class RunOutcome(NamedTuple):
    """The result of a run.

    Args:
        violation: the first violation, None for none.
        trace: the last lines of the trace.
        digest: equal for equal runs.
        virtual_ms: the duration of the run in virtual time.
        healed_ms: the time from the heal until all demands held.
        struck: the number of times that each fault happened.
        saw_duplicate_ids: whether queues with two owners, and with none, were seen.
        pop_count: the messages that groups popped which consume by messages.
        reached: how often the run came to each of the `SITUATIONS`, and to others.
    """

    seed: int
    violation: str | None
    trace: tuple[str, ...]
    digest: int
    virtual_ms: int
    healed_ms: int
    event_count: int
    message_count: int
    transaction_count: int
    duplicate_count: int
    faults: Faults
    struck: Mapping[str, int]
    saw_duplicate_ids: bool = False
    pop_count: int = 0
    reached: Mapping[str, int] = {}


def draw_scenario(dice: Dice, draw_kind: Callable[[Dice], Faults]) -> Scenario:
    """Choose the parameters of a run with a kind of faults."""
    is_long = dice.random() < _LONG_SHARE
    fault_ms = dice.randrange(150_000, 300_000) if is_long else dice.randrange(15_000, 60_000)
    message_count = dice.randrange(20, 200)
    member_count = dice.randrange(1, 5)
    broker_count = 2 if dice.random() < 0.3 else 1
    scenario = Scenario(
        broker_count=broker_count,
        queue_count=max(1, -(-dice.randrange(2, 9) // broker_count)),
        member_count=member_count,
        producer_count=dice.randrange(1, 3),
        message_count=message_count,
        pause_ms_max=4 * fault_ms // message_count,
        fault_ms=fault_ms,
        probe_count=dice.randrange(1, 20),
        batch_size=dice.choice((1, 1, 3)),
        pull_batch_size=dice.choice((1, 4, 32)),
        consume_thread_count=dice.choice((1, 3, 20)),
        strategy=dice.choice(STRATEGIES),
        sync_flush=dice.random() < 0.8,
        faults=draw_kind(dice),
        listener_ms_max=dice.choice(_LISTENER_MS_MAX),
        delayed_share=dice.choice(_DELAYED_SHARES),
        retries_max=dice.choice(_RETRIES_MAX),
    )
    if draw_kind in (draw_power_faults, draw_retry_faults):
        scenario = _with_much_to_write(scenario)
    if draw_kind in (draw_delay_faults, draw_power_faults):
        scenario = replace(scenario, delayed_share=0.3)
    if draw_kind is draw_delay_faults:
        scenario = replace(scenario, retries_max=1)
    if draw_kind is draw_kill_faults:
        # With two brokers, the route loses the killed one's queues, and they are given up.
        broker_count = dice.choice((1, 2))
        scenario = replace(scenario, member_count=1, broker_count=broker_count, queue_count=3)
    return _with_duplicate_ids(scenario) if dice.random() < _DUPLICATE_SHARE else scenario


def _with_much_to_write(scenario: Scenario) -> Scenario:
    """Return the scenario with many messages."""
    return replace(
        scenario,
        producer_count=2,
        message_count=BUSY_MESSAGE_COUNT,
        pause_ms_max=4 * scenario.fault_ms // BUSY_MESSAGE_COUNT,
    )


def _with_duplicate_ids(scenario: Scenario) -> Scenario:
    """Return the scenario with one client id for all members, and a group of constant size."""
    steady = dict.fromkeys(
        ("member_crash", "member_power_cut", "member_join", "member_leave", "delay"), 0.0
    )
    return replace(
        scenario,
        broker_count=1,
        queue_count=8,
        member_count=2 + scenario.member_count % 2,
        strategy="AVG",
        faults=replace(scenario.faults, duplicate_ids=1.0, **steady),  # type: ignore[arg-type]
    )


def run_seed(seed: int, *, only: Iterable[str] | None = None) -> RunOutcome:
    """Run the scenario of a seed; `only` names the faults to keep."""
    # In turn, so that any few seeds in a row have every kind.
    draw_kind = FAULT_KINDS[seed % len(FAULT_KINDS)]
    scenario = draw_scenario(Random(f"{seed} scenario"), draw_kind)
    is_orderly = Random(f"{seed} orderly").random() < _ORDERLY_SHARE
    scenario = replace(scenario, is_orderly=is_orderly and not scenario.faults.duplicate_ids)
    dice = Random(f"{seed} owners")
    if dice.random() < _OWNERS_SHARE and not scenario.faults.duplicate_ids:
        scenario = replace(scenario, strategy=dice.choice(_OWNERS_STRATEGIES))
    dice = Random(f"{seed} expiry")
    if dice.random() < _EXPIRY_SHARE and not scenario.faults.are_prompt:
        expiry = 2 + 6 * dice.random()
        scenario = replace(scenario, faults=replace(scenario.faults, expiry=expiry))
    dice = Random(f"{seed} clocks")
    if dice.random() < _CLOCKS_SHARE:
        faults = replace(scenario.faults, client_clock_jump=1 + 4 * dice.random())
        if not faults.are_prompt:
            faults = replace(faults, broker_clock_jump=1 + 4 * dice.random())
        scenario = replace(scenario, faults=faults)
    dice = Random(f"{seed} wrong clocks")
    if dice.random() < _WRONG_CLOCKS_SHARE and not scenario.faults.are_prompt:
        back, speed = 1 + 2 * dice.random(), 2 + 4 * dice.random()
        faults = replace(scenario.faults, broker_clock_back=back, clock_speed=speed)
        scenario = replace(scenario, faults=faults)
    if Random(f"{seed} notices").random() < _GATHERED_SHARE:
        scenario = replace(scenario, notice_pause_ms=_NOTICE_PAUSE_MS)
    if not scenario.faults.duplicate_ids:
        scenario = _with_transactions(scenario, Random(f"{seed} transactions"))
        # The pop ledger reads the instant of a pop from its time by the broker's clock.
        has_right_clocks = not scenario.faults.clock_speed
        is_wanted = Random(f"{seed} pops").random() < _POPS_SHARE
        if scenario.sync_flush and has_right_clocks and is_wanted:
            scenario = replace(scenario, pop_user_count=_POP_USERS)
    dice = Random(f"{seed} name servers")
    if dice.random() < _NAME_SERVERS_SHARE:
        scenario = _with_name_servers(scenario, dice)
    dice = Random(f"{seed} queues")
    if dice.random() < _QUEUES_SHARE:
        scenario = _with_changing_queues(scenario, dice)
    if only is not None:
        scenario = replace(scenario, faults=keep_only(scenario.faults, only))
    return run_scenario(seed, scenario)


def _with_name_servers(scenario: Scenario, dice: Dice) -> Scenario:
    """Return the scenario with two name servers, which fail unless all faults must be noticed."""
    faults = scenario.faults
    # Members that only come and go need no name server to hand queues over.
    may_fail = faults.are_graceful or not faults.are_prompt
    if may_fail and not (faults.duplicate_ids or faults.late_retry_topic):
        rates = {name: rate * dice.random() for name, rate in _NAME_SERVER_RATES.items()}
        faults = replace(faults, **rates)  # type: ignore[arg-type]
    return replace(scenario, name_server_count=2, faults=faults)


def _with_changing_queues(scenario: Scenario, dice: Dice) -> Scenario:
    """Return the scenario with a changing number of queues, unless changes must be noticed soon."""
    faults, grow, shrink = scenario.faults, dice.random(), dice.random()
    is_noticed = faults.are_prompt and not faults.are_graceful
    if is_noticed or faults.are_kills or faults.duplicate_ids:
        return scenario
    # A pop that waits finds no message of a queue that is hidden.
    shrink_rate = 0.0 if scenario.pop_user_count else _QUEUES_RATE * shrink
    faults = replace(faults, queues_grow=_QUEUES_RATE * grow, queues_shrink=shrink_rate)
    return replace(scenario, faults=faults)


def _with_transactions(scenario: Scenario, dice: Dice) -> Scenario:
    """Return the scenario with transactions in some runs, and with killed producers in most."""
    faults = scenario.faults
    # If nothing fails, each transaction must end as its user says; if power fails at the worst
    # moment, no confirmed end may be lost.
    is_wanted = faults.are_graceful or faults.write_kill > 0
    if dice.random() >= _TRANSACTIONS_SHARE and not is_wanted:
        return scenario
    if not faults.are_prompt:
        crashes = dice.choice((0.0, 1.0, 1.0)) * _PRODUCER_CRASHES_MAX * dice.random()
        faults = replace(faults, producer_crash=crashes)
    return replace(
        scenario,
        transaction_count=max(1, scenario.message_count // (1 if faults.are_graceful else 2)),
        check_interval_ms=SHORT_INTERVAL_MS if faults.are_graceful else CHECK_INTERVAL_MS,
        faults=faults,
    )


def run_scenario(seed: int, scenario: Scenario) -> RunOutcome:
    """Run one scenario with a seed's choices."""

    def make_dice(purpose: str) -> Dice:
        return Random(f"{seed} {purpose}")

    cluster = SimulatedCluster(scenario, make_dice)
    faults = scenario.faults
    cluster.trace.add(f"seed {seed}: {scenario} with {describe(faults)}")
    cluster.start()
    injector = Injector(cluster, make_dice)
    injector.start()
    end_ms = cluster.timeline.now_ms + scenario.fault_ms
    cluster.run(until_ms=end_ms)
    injector.stop()
    healed_ms = cluster.timeline.now_ms
    cluster.heal()
    saw = False
    if faults.duplicate_ids:
        saw = _expect_duplicates(cluster)
    else:
        _expect_health(cluster)
    timeline, checkers = cluster.timeline, cluster.checkers
    return RunOutcome(
        seed=seed,
        violation=checkers.violation,
        trace=cluster.trace.lines(),
        digest=cluster.trace.digest ^ timeline.event_count ^ cluster.network.chunk_count << 16,
        virtual_ms=timeline.now_ms - START_MS,
        healed_ms=timeline.now_ms - healed_ms,
        event_count=timeline.event_count,
        message_count=len(checkers.acked),
        transaction_count=checkers.ledger.half_count,
        duplicate_count=checkers.duplicates,
        faults=faults,
        struck=injector.struck,
        saw_duplicate_ids=saw,
        pop_count=sum(ledger.delivered for ledger in checkers.pops.values()),
        reached=checkers.reached + Counter(injector.struck),
    )


def _expect_health(cluster: SimulatedCluster) -> None:
    """Demand one owner for every queue, and then the consumption of every message."""
    timeline, checkers = cluster.timeline, cluster.checkers
    faults = cluster.scenario.faults
    come_and_go = faults.are_graceful and not faults.strike_routes
    bound_ms = GRACEFUL_OWNERSHIP_BOUND_MS if come_and_go else OWNERSHIP_BOUND_MS
    if cluster.has_changed_queues:
        bound_ms += NEW_QUEUES_MS
    routed_by_ms = timeline.now_ms + ROUTES_BOUND_MS
    owned_by_ms = timeline.now_ms + bound_ms
    scenario = cluster.scenario
    sent_by_ms = owned_by_ms + scenario.message_count * scenario.pause_ms_max
    finished_by_ms = sent_by_ms + _consumption_bound_ms(checkers)
    has_probed = False
    while checkers.violation is None:
        cluster.run(until_ms=timeline.now_ms + LOOK_MS)
        ownership = cluster.ownership()
        if timeline.now_ms >= owned_by_ms and not ownership.is_exact:
            checkers.fail(f"{bound_ms} ms after the heal: {ownership}")
        old = cluster.find_old_route()
        if timeline.now_ms >= routed_by_ms and old is not None:
            checkers.fail(f"{ROUTES_BOUND_MS} ms after the heal: {old}")
        leaving = [m.name for m in cluster.members if m.is_leaving and m.process.is_alive]
        if leaving and timeline.now_ms >= finished_by_ms:
            checkers.fail(f"{leaving[0]} has not left long after the heal")
        if not ownership.is_exact or cluster.has_ghosts() or not cluster.are_producers_done():
            continue
        if not has_probed:
            has_probed = True
            cluster.probe()
            sent_by_ms = max(timeline.now_ms, owned_by_ms)
            finished_by_ms = sent_by_ms + _consumption_bound_ms(checkers)
            continue
        unfinished = checkers.find_unfinished() or cluster.find_undecided()
        if unfinished is None and not leaving and old is None:
            return
        if unfinished is not None and timeline.now_ms >= finished_by_ms:
            checkers.fail(f"long after the heal: {unfinished}")


def _consumption_bound_ms(checkers: Checkers) -> int:
    return max(RETRY_BOUND_MS, checkers.longest_retry_ms()) + CONSUMPTION_BOUND_MS


def _expect_duplicates(cluster: SimulatedCluster) -> bool:
    """Demand that the checkers and the members see the signs of a shared client id."""
    timeline, checkers = cluster.timeline, cluster.checkers
    deadline_ms = timeline.now_ms + OWNERSHIP_BOUND_MS
    while checkers.violation is None:
        cluster.run(until_ms=timeline.now_ms + LOOK_MS)
        ownership = cluster.ownership()
        is_reported = any(member.has_reported_duplicate for member in cluster.live_members)
        if ownership.doubled and ownership.unowned and is_reported and not cluster.has_ghosts():
            return True
        if timeline.now_ms >= deadline_ms:
            checkers.fail(
                f"a shared client id shows as {ownership}, members reported it: {is_reported}"
            )
    return False
