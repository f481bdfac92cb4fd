"""Live groups whose members come and go: how many queues change hands, against the least.

Each event (a join, a graceful leave, a kill) strikes once the one before has settled, or, for
`run_storm`, whenever it comes. The members are those of every other run: what they know of each
other's queues is what brokers answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import NamedTuple

from sparrowmq.model import MessageQueue
from sparrowmq.simulation.cluster import Scenario, SimulatedCluster
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.faults import Faults

MEMBERS_MAX = 8
# How often the world is looked at, and how long an event may take: a killed member's locks last
# for 10 s, and its queues are locked by the new owners a little later.
LOOK_MS = 100
SETTLE_LIMIT_MS = 40_000

Owners = Mapping[MessageQueue, str]


class Move(NamedTuple):
    """What one event did.

    Args:
        moved: queues that changed hands, those of a member that went included.
        least: the fewest with which loads stay within one.
        spread: the largest load less the smallest afterwards.
        owned_ms: how long until every queue had exactly one owner.
        settled_ms: how long until each owner had its lock.
    """

    event: str
    moved: int
    least: int
    spread: int
    owned_ms: int
    settled_ms: int


def least_moves(before: Owners, queues: Collection[MessageQueue], cids: Collection[str]) -> int:
    """Return how many queues must change hands for loads within one.

    Those whose owner has gone, and what each member has over its part. Members with more than
    the share get the surplus, as far as it goes: that saves one move each.
    """
    stay = {queue: before[queue] for queue in queues if queue in before}
    loads = Counter(owner for owner in stay.values() if owner in cids)
    share, surplus = divmod(len(queues), len(cids))
    over = [load - share for load in loads.values() if load > share]
    orphaned = sum(owner not in cids for owner in stay.values())
    return orphaned + sum(over) - min(surplus, len(over))


def run_churn(seed: int, *, event_count: int, strategy: str = "MINIMAL_MOVE") -> list[Move]:
    """Let members come and go, each time once the group has settled.

    Raises: AssertionError, with the seed, if a group does not settle or an invariant is broken.
    """
    cluster, dice = _start(seed, strategy)
    _settle(cluster, seed, "at first")
    moves = []
    for _ in range(event_count):
        before, at_ms = owners_of(cluster), cluster.timeline.now_ms
        event = _strike(cluster, dice)
        owned_ms, settled_ms = _settle(cluster, seed, event)
        after, cids = owners_of(cluster), [member.client_id for member in cluster.live_members]
        loads = Counter(after.values())
        counts = [loads[cid] for cid in cids]
        moves.append(
            Move(
                event,
                sum(before[queue] != owner for queue, owner in after.items()),
                least_moves(before, cluster.all_queues, cids),
                max(counts) - min(counts),
                owned_ms - at_ms,
                settled_ms - at_ms,
            )
        )
    return moves


def run_storm(seed: int, *, event_count: int, strategy: str = "MINIMAL_MOVE") -> int:
    """Let members come and go faster than the group settles; return how long it takes at last.

    Raises: AssertionError, with the seed, if it does not settle within loads of one.
    """
    cluster, dice = _start(seed, strategy)
    for _ in range(event_count):
        _strike(cluster, dice)
        cluster.run(until_ms=cluster.timeline.now_ms + dice.randrange(0, 3_000))
    at_ms = cluster.timeline.now_ms
    owned_ms, _ = _settle(cluster, seed, "the storm")
    loads = Counter(owners_of(cluster).values())
    counts = [loads[member.client_id] for member in cluster.live_members]
    assert max(counts) - min(counts) <= 1, f"seed {seed}: loads {counts}"
    return owned_ms - at_ms


def owners_of(cluster: SimulatedCluster) -> dict[MessageQueue, str]:
    """Return who has which queue."""
    return {queue: member.client_id for member in cluster.live_members for queue in member.assigned}


def _start(seed: int, strategy: str) -> tuple[SimulatedCluster, Dice]:
    def make_dice(purpose: str) -> Dice:
        return Random(f"{seed} {purpose}")

    dice = make_dice("churn")
    broker_count = dice.choice((1, 1, 2))
    cluster = SimulatedCluster(
        Scenario(
            broker_count=broker_count,
            queue_count=dice.randrange(1, 17) // broker_count + 1,
            member_count=dice.randrange(1, 6),
            producer_count=1,
            message_count=20,
            pause_ms_max=2_000,
            fault_ms=0,
            probe_count=1,
            batch_size=1,
            pull_batch_size=32,
            consume_thread_count=20,
            strategy=strategy,
            sync_flush=False,
            faults=Faults(member_join=1.0, member_leave=1.0, member_crash=1.0),
        ),
        make_dice,
    )
    cluster.start()
    cluster.run(until_ms=cluster.timeline.now_ms + 3_000)
    return cluster, dice


def _strike(cluster: SimulatedCluster, dice: Dice) -> str:
    live = cluster.live_members
    kinds = ["join"] * (len(live) < MEMBERS_MAX) + ["leave", "kill"] * (len(live) > 1)
    kind = dice.choice(kinds)
    if kind == "join":
        cluster.add_member()
    else:
        member = dice.choice(live)
        strike: Callable[[], None] = member.leave if kind == "leave" else member.kill
        cluster.trace.add(f"{kind} {member.name}")
        strike()
    return kind


def _settle(cluster: SimulatedCluster, seed: int, event: str) -> tuple[int, int]:
    """Wait until each queue has one owner, with its lock; return when the two were so."""
    timeline = cluster.timeline
    limit_ms = timeline.now_ms + SETTLE_LIMIT_MS
    owned_ms: int | None = None
    while timeline.now_ms < limit_ms:
        cluster.run(until_ms=timeline.now_ms + LOOK_MS)
        if cluster.checkers.violation is not None:
            break
        if not cluster.has_ghosts() and set(owners_of(cluster)) == set(cluster.all_queues):
            if cluster.ownership().is_exact and owned_ms is None:
                owned_ms = timeline.now_ms
            if owned_ms is not None and _is_locked(cluster):
                return owned_ms, timeline.now_ms
        else:
            owned_ms = None
    trace = "\n".join(cluster.trace.lines())
    raise AssertionError(
        f"seed {seed}, {event}: {cluster.checkers.violation or cluster.ownership()}\n{trace}"
    )


def _is_locked(cluster: SimulatedCluster) -> bool:
    now_ms = cluster.timeline.now_ms
    return all(
        set(member.assigned) == {owned.queue for owned in member.subscriber.member.owned_queues()}
        and set(member.assigned) <= {*member.subscriber.member.sure_queues(now_ms)}
        for member in cluster.live_members
    )
