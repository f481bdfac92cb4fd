"""Simulates a group's lag over time: queues of unequal rates, members of unequal speed. Pure.

No member runs. Time goes in steps of `STEP_S`. In a step each queue gets a random number of
messages about its rate, and each member consumes what its capacity allows, from its queues in equal
parts. AVG_BY_LOAD divides the queues again every `PERIOD_S`. It measures as members do: the rate
over the last `RATE_WINDOW_S`, the lag at the start of the period, the capacity with an error of
5 %. A queue that moves is not consumed for `MOVE_S`, as in a hand-over. The oracle knows the mean
rates and the capacities, and divides once. By message (POP, share groups) no queue has an owner:
every member takes messages of all queues.
Tests: doctor/test_workloads.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from typing import NamedTuple, Protocol

from sparrowmq.errors import ConfigError
from sparrowmq.model import MessageQueue
from sparrowmq.strategies.by_load import GroupLoads, QueueLoad, rebalance_loads
from sparrowmq.strategies.minimal_move import divide
from sparrowmq.strategies.registry import strategy_from

QUEUE_COUNT = 64
MEMBER_COUNT = 8
QUEUES_MAX = 512
MEMBERS_MAX = 64
DURATION_S = 1_200
STEP_S = 5
PERIOD_S = 20
RATE_WINDOW_S = 30
MOVE_S = 1
# The mean of the members' capacities.
CAPACITY_PER_S = 100.0
# The part of the members' capacity that messages need.
UTILIZATION = 0.7
# When a member begins to stand still.
STALL_START_S = 600
# The last part of a run, whose greatest lag is reported.
JUDGED_S = 300
SEEDS = (1, 2, 3, 4, 5)


class Noise(Protocol):
    """The part of `random.Random` that the simulation uses."""

    def gauss(self, mu: float, sigma: float, /) -> float:
        """Return a number of a normal distribution."""
        ...


class GroupSize(NamedTuple):
    """The numbers of queues and of members."""

    queues: int = QUEUE_COUNT
    members: int = MEMBER_COUNT


class Policy(Enum):
    """The ways to divide that are compared."""

    AVG = "AVG"
    CIRCLE = "AVG_BY_CIRCLE"
    MINIMAL = "MINIMAL_MOVE"
    LOAD = "AVG_BY_LOAD"
    ORACLE = "oracle"
    MESSAGE = "by message"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWorkload:
    """A group's messages and members.

    Args:
        name: its name on the command line.
        meaning: what it is, for the table.
        zipf: the exponent of the queues' rates; 0 makes them equal.
        speed_ratio: how much faster every second member is than the others.
        hot_moves_s: after how long the hot queues become others; 0 for never.
        backlog: the messages that wait at the start.
        utilization: the part of the members' capacity that new messages need.
        stall_s: for how long the first member's listener does not return, from `STALL_START_S`.
    """

    name: str
    meaning: str
    zipf: float = 0.0
    speed_ratio: float = 1.0
    hot_moves_s: int = 0
    backlog: int = 0
    utilization: float = UTILIZATION
    stall_s: int = 0

    def capacities(self, count: int) -> list[float]:
        """Return the messages a second of each member."""
        speeds = [self.speed_ratio if n % 2 else 1.0 for n in range(count)]
        scale = CAPACITY_PER_S * count / sum(speeds)
        return [speed * scale for speed in speeds]

    def rates(self, count: int, total_per_s: float, at_s: int) -> list[float]:
        """Return the messages a second of each queue."""
        shift = 0
        if self.hot_moves_s:
            # By a third of the queues, so that other members have the hot queues.
            shift = at_s // self.hot_moves_s * (count // 3 + 1)
        weights = [((n - shift) % count + 1.0) ** -self.zipf for n in range(count)]
        scale = total_per_s * self.utilization / sum(weights)
        return [weight * scale for weight in weights]


WORKLOADS = (
    GroupWorkload(name="zipf", meaning="Zipf 0.8, equal members", zipf=0.8),
    GroupWorkload(name="speeds", meaning="equal queues, members 1:4", speed_ratio=4),
    GroupWorkload(name="both", meaning="Zipf 0.8, members 1:4", zipf=0.8, speed_ratio=4),
    GroupWorkload(name="hot", meaning="Zipf 0.8, hot queues change", zipf=0.8, hot_moves_s=400),
    GroupWorkload(
        name="backlog",
        meaning="100,000 waiting, members 1:4",
        speed_ratio=4,
        backlog=100_000,
        utilization=0.4,
    ),
    GroupWorkload(name="equal", meaning="equal queues, equal members"),
    GroupWorkload(name="steep", meaning="Zipf 1.2, equal members", zipf=1.2),
    GroupWorkload(name="stall", meaning="a member stands still for 6 minutes", stall_s=360),
)


class Result(NamedTuple):
    """What one run, or the median of several, ended with.

    Args:
        lag_max: the greatest lag of one queue in the last `JUDGED_S`.
        moves: the queues that changed hands.
        drained_s: when the backlog was consumed; None if it was not.
        load_max: the greatest load of a member at the end, by its true rates.
    """

    lag_max: int
    moves: int
    drained_s: int | None
    load_max: float


@dataclass(slots=True)
class _Run:
    workload: GroupWorkload
    policy: Policy
    noise: Noise
    queues: list[MessageQueue]
    cids: list[str]
    capacities: dict[str, float]
    reported: dict[str, float] = field(default_factory=dict)
    lags: list[float] = field(default_factory=list)
    # The messages of each queue so far, at the start of each of the last steps.
    totals: deque[list[float]] = field(default_factory=deque)
    moved_s: dict[MessageQueue, int] = field(default_factory=dict)
    owners: dict[MessageQueue, str] = field(default_factory=dict)
    moves: int = 0
    lag_max: float = 0.0
    drained_s: int | None = None


DEFAULT_SIZE = GroupSize()


def run(
    workload: GroupWorkload, policy: Policy, noise: Noise, *, size: GroupSize = DEFAULT_SIZE
) -> Result:
    """Run a group for `DURATION_S` under a policy."""
    queue_count, member_count = size
    queues = [MessageQueue("T", "broker-1", n) for n in range(queue_count)]
    cids = [f"10.0.0.{n + 1:03d}@1" for n in range(member_count)]
    capacities = dict(zip(cids, workload.capacities(member_count), strict=True))
    state = _Run(workload, policy, noise, queues, cids, capacities)
    state.reported = {cid: c * noise.gauss(1, 0.05) for cid, c in capacities.items()}
    state.lags = [workload.backlog / queue_count] * queue_count
    state.totals = deque([[0.0] * queue_count], maxlen=RATE_WINDOW_S // STEP_S + 1)
    state.owners = _first_owners(state)
    for now_s in range(0, DURATION_S, STEP_S):
        if policy is Policy.LOAD and now_s and now_s % PERIOD_S == 0:
            _rebalance(state, now_s)
        _step(state, now_s)
    rates = dict(zip(queues, _rates(state, DURATION_S - 1), strict=True))
    truth = GroupLoads(
        queues={queue: QueueLoad(rate, 0) for queue, rate in rates.items()}, capacities=capacities
    )
    loads = truth.member_loads(state.owners, cids)
    if policy is Policy.MESSAGE:
        loads = dict.fromkeys(cids, sum(rates.values()) / sum(capacities.values()))
    load_max = max(loads.values())
    return Result(round(state.lag_max), state.moves, state.drained_s, load_max)


def compare(
    workload: GroupWorkload,
    make_noise: Callable[[int], Noise],
    *,
    size: GroupSize = DEFAULT_SIZE,
    seeds: Sequence[int] = SEEDS,
) -> dict[Policy, Result]:
    """Return the medians of several runs of each policy.

    Raises: ConfigError if a number of the size is out of its range.
    """
    for name, count, most in (
        ("queues", size.queues, QUEUES_MAX),
        ("members", size.members, MEMBERS_MAX),
    ):
        if not 1 <= count <= most:
            raise ConfigError(f"{name} is {count}; with a workload it must be from 1 to {most}")
    return {
        policy: _median([run(workload, policy, make_noise(seed), size=size) for seed in seeds])
        for policy in Policy
    }


def _median(results: Sequence[Result]) -> Result:
    drained = median(DURATION_S + 1 if r.drained_s is None else r.drained_s for r in results)
    return Result(
        lag_max=round(median(result.lag_max for result in results)),
        moves=round(median(result.moves for result in results)),
        drained_s=None if drained > DURATION_S else round(drained),
        load_max=median(result.load_max for result in results),
    )


def _rates(state: _Run, at_s: int) -> list[float]:
    total = CAPACITY_PER_S * len(state.cids)
    return state.workload.rates(len(state.queues), total, at_s)


def _first_owners(state: _Run) -> dict[MessageQueue, str]:
    queues, cids = state.queues, state.cids
    if state.policy is Policy.ORACLE:
        return _best_owners(state)
    if state.policy in (Policy.MINIMAL, Policy.LOAD, Policy.MESSAGE):
        return divide(queues, cids)
    strategy = strategy_from(state.policy.value)
    return {queue: cid for cid in cids for queue in strategy.allocate("G", cid, queues, cids) or ()}


def _best_owners(state: _Run) -> dict[MessageQueue, str]:
    """Give each queue, the heaviest first, to the member that it loads least."""
    # Where hot queues change, the oracle knows only the mean of the rates: it divides once.
    starts = range(0, DURATION_S, state.workload.hot_moves_s or DURATION_S)
    demands = [0.0] * len(state.queues)
    for at_s in starts:
        for n, rate in enumerate(_rates(state, at_s)):
            demands[n] += rate / len(starts) + state.workload.backlog / len(demands) / DURATION_S
    loads = dict.fromkeys(state.cids, 0.0)
    owners: dict[MessageQueue, str] = {}
    for n in sorted(range(len(demands)), key=lambda n: -demands[n]):
        best = min(loads, key=lambda cid: loads[cid] + demands[n] / state.capacities[cid])
        owners[state.queues[n]] = best
        loads[best] += demands[n] / state.capacities[best]
    return owners


def _rebalance(state: _Run, now_s: int) -> None:
    oldest, newest = state.totals[0], state.totals[-1]
    seconds = (len(state.totals) - 1) * STEP_S
    loads = GroupLoads(
        queues={
            queue: QueueLoad((newest[n] - oldest[n]) / seconds, round(state.lags[n]))
            for n, queue in enumerate(state.queues)
        },
        capacities=state.reported,
        resting=[q for q, moved_s in state.moved_s.items() if now_s - moved_s <= 2 * PERIOD_S],
    )
    state.owners, gain = rebalance_loads(state.owners, state.cids, loads)
    state.moved_s |= dict.fromkeys(gain.moved, now_s)
    state.moves += len(gain.moved)


def _step(state: _Run, now_s: int) -> None:
    lags, gauss = state.lags, state.noise.gauss
    total = list(state.totals[-1])
    for n, rate in enumerate(_rates(state, now_s)):
        mean = rate * STEP_S
        came = max(0.0, gauss(mean, mean**0.5))
        lags[n] += came
        total[n] += came
    state.totals.append(total)
    rooms = {cid: capacity * STEP_S for cid, capacity in state.capacities.items()}
    if now_s in range(STALL_START_S, STALL_START_S + state.workload.stall_s):
        rooms[state.cids[0]] = 0.0
    if state.policy is Policy.MESSAGE:
        _consume(lags, range(len(lags)), sum(rooms.values()))
    else:
        _consume_own(state, rooms, now_s)
    if now_s >= DURATION_S - JUDGED_S:
        state.lag_max = max(state.lag_max, *lags)
    # What a step brings is always there; a second's messages are not a backlog.
    if state.drained_s is None and sum(lags) <= CAPACITY_PER_S * len(state.cids):
        state.drained_s = now_s + STEP_S


def _consume_own(state: _Run, rooms: dict[str, float], now_s: int) -> None:
    """Let each member consume of its own queues."""
    numbers: dict[str, list[int]] = {cid: [] for cid in state.cids}
    for n, queue in enumerate(state.queues):
        numbers[state.owners[queue]].append(n)
    for cid, mine in numbers.items():
        # A member consumes no more while its queues are handed over.
        pauses = sum(state.moved_s.get(state.queues[n]) == now_s for n in mine)
        _consume(state.lags, mine, rooms[cid] * (1 - MOVE_S / STEP_S * pauses / max(1, len(mine))))


def _consume(lags: list[float], mine: Sequence[int], room: float) -> None:
    """Take messages from a member's queues in equal parts; what one lacks others may use."""
    left = len(mine)
    for n in sorted(mine, key=lags.__getitem__):
        taken = min(lags[n], room / left)
        lags[n] -= taken
        room -= taken
        left -= 1


def parse_workloads(names: Sequence[str]) -> list[GroupWorkload]:
    """Return the workloads of these names; `all` is every workload.

    Raises: ConfigError for an unknown name.
    """
    known = {workload.name: workload for workload in WORKLOADS}
    if "all" in names:
        return list(WORKLOADS)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            f"unknown workload {unknown[0]!r}; all are {', '.join(known)}, or `all` for every one"
        )
    return [known[name] for name in names]
