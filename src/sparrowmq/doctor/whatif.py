"""Simulates members' joins, leaves and deaths under RocketMQ's, SparrowMQ's, Kafka's strategies.

No member runs. The simulation calls strategies and assignors with the lists that members would
have. A group has one topic, whose queues are spread over brokers (and machine rooms) in turn, and
members with ids such as `10.0.0.1@101`.

**Cost model.** A message is one frame in one direction; a request with its answer is two. A trip is
the time of one frame. There are B brokers, m members after the event, and one topic; no frame is
lost, and nobody is slow. RocketMQ's strategies run in Java's client, SparrowMQ's in SparrowMQ's.
Kafka has two protocols: in the classic one (`range` to `cooperative-sticky`) a member computes all
shares, in the consumer protocol (`uniform`) the coordinator. In `POP` no queue has an owner.

| | RocketMQ | SparrowMQ | Kafka, eager | Kafka, cooperative |
|---|---|---|---|---|
| a join | heartbeat to every broker 2B | same | find coordinator 2, join with no id 2 | same |
| a leave | unregister at every broker 2B | same | leave 2 | same |
| a kill | 0: brokers see the connection close | same | 0: its session must expire | same |
| others learn of it | notice to every member, Bm | same | answer to a heartbeat, 2 each | same |
| agreeing | one list each, 2m | lists and owners, 2Bm | join and sync, 4m | 8m if queues move |
| handing over, a queue | commit 1, query 2 | and lock, unlock: 8 | commit 2m, fetch 2m in all | 4 |
| trips to agree | 4 (kill: 3) | same | 5 (kill: 4) and a heartbeat | 4 more in a second round |
| longest wait | 20 s, if a notice is lost | same | 3 s heartbeat, 300 s to all polls | a round |
| if one was killed | same | same | and 45 s until its session ends | same |
| a machine cut off | 130 s + 20 s | 20 s | 45 s | same |
| meanwhile | a moved queue may have two owners | it waits for its lock | all stops | it stops |

| | Kafka's consumer protocol | POP |
|---|---|---|
| a join | find coordinator 2, heartbeat 2 | heartbeat to every broker 2B |
| a leave, a kill | its last heartbeat 2; 0 | unregister 2B; 0 |
| others learn of it | answer to a heartbeat, 2 each | notice Bm, ask for assignments 2m: the same |
| handing over, a queue | 4; giver confirms, taker asks again, 2 each | 0 |
| trips to agree | join 4, leave 3, kill 2; if queues move 5 more, or 3 | join 4, else 0 |
| longest wait | 5 s heartbeat; if queues move, again | 0 |
| if one was killed | and 45 s until its session ends | 60 s: what it had comes again |
| meanwhile | moved queues stop | nothing stops |

**Split view.** Every second member has not heard of the member listed last. In RocketMQ each member
computes from its own list, so some queues have no owner or two until the next look. Between
SparrowMQ's members a lock has one holder, so no queue has two owners. In Kafka the coordinator has
the only list, and shares carry its generation: no queue is unowned or owned twice, and a member
unknown to the coordinator is idle. Who pops needs no list.

**Duplicate id.** The last member carries the first member's id. RocketMQ's brokers list the id
twice. Kafka's coordinator names members itself, so two equal client ids are two members.

Source: rebalance rules of RocketMQ 4.9, POP of 5.5; KIP-54, KIP-62, KIP-394, KIP-429, KIP-848.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from sparrowmq.errors import ConfigError, did_you_mean
from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import java_order, queue_order
from sparrowmq.strategies.by_config import AllocateMessageQueueByConfig
from sparrowmq.strategies.group_strategy import TopicView, WholeGroupStrategy
from sparrowmq.strategies.kafka_assignors import KAFKA_ASSIGNORS
from sparrowmq.strategies.machine_room import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueByMachineRoom,
)
from sparrowmq.strategies.registry import (
    SPARROW_STRATEGIES,
    strategy_from,
    unknown_strategy,
)
from sparrowmq.strategies.strategy import AllocateMessageQueueStrategy

TOPIC = "T"
ROCKETMQ_NAMES = (
    "AVG",
    "AVG_BY_CIRCLE",
    "CONFIG",
    "MACHINE_ROOM",
    "MACHINE_ROOM_NEARBY-AVG",
    "CONSISTENT_HASH",
)
# Only for groups whose members all run SparrowMQ.
SPARROW_NAMES = tuple(SPARROW_STRATEGIES)
KAFKA_NAMES = tuple(KAFKA_ASSIGNORS)
# Computed by Kafka's coordinator.
SERVER_NAME = "uniform"
# Any member takes messages of any queue.
SHARED_NAME = "POP"
ALL_NAMES = (*ROCKETMQ_NAMES, *SPARROW_NAMES, *KAFKA_NAMES, SERVER_NAME, SHARED_NAME)

# RebalanceService.waitInterval; Kafka's defaults.
REBALANCE_WAIT_MS = 20_000
KAFKA_HEARTBEAT_MS = 3_000
KAFKA_SESSION_MS = 45_000
# max.poll.interval.ms: each round of the classic protocol waits until every member has polled.
KAFKA_POLL_MS = 300_000
# group.consumer.heartbeat.interval.ms, of the consumer protocol.
KAFKA_SERVER_HEARTBEAT_MS = 5_000
# The invisible time of Java's push consumer.
POP_INVISIBLE_MS = 60_000

QUEUES_MAX = 10_000
MEMBERS_MAX = 1_000
EVENTS_MAX = 100
# Every member looks at every queue, before the first event and after each. All strategies together
# take some 20 s of the processor for so many looks.
LOOKS_MAX = 500_000

# The numbers of each queue's owners; a member's number distinguishes it from members of equal id.
Owners = dict[MessageQueue, tuple[int, ...]]


class GroupEventKind(Enum):
    """The kind of an event."""

    JOIN = "join"
    LEAVE = "leave"
    KILL = "kill"


class GroupEvent(NamedTuple):
    """One event; `place` is the member's index in id order; None is the first member, or a join."""

    kind: GroupEventKind
    place: int | None = None

    def __str__(self) -> str:
        return self.kind.value if self.place is None else f"{self.kind.value}:{self.place}"


class MemberProcess(NamedTuple):
    """A process; `number` is unique, `client_id` should be."""

    number: int
    client_id: str


class Cost(NamedTuple):
    """The cost of agreeing after an event, by the model above.

    Args:
        messages: the frames exchanged, those of the hand-over included.
        trips: the one-way delays until every member has its new share.
        wait_ms_max: the longest delay that timers may add.
        stopped: the queues that nobody consumes meanwhile.
        overlapping: the queues that two members may consume meanwhile.
    """

    messages: int
    trips: int
    wait_ms_max: int
    stopped: int
    overlapping: int


class SplitView(NamedTuple):
    """The effect of members with different lists.

    Args:
        unowned: the number of queues that no member takes.
        double: the number of queues that several members take.
        idle: the number of members without a queue.
    """

    unowned: int
    double: int
    idle: int = 0


NO_COST = Cost(0, 0, 0, 0, 0)
NO_HARM = SplitView(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A group after an event, or before the first (`event` is None), under one strategy.

    Args:
        members: the members in id order.
        owners: the numbers of each queue's owners.
        moved: the number of queues that a staying member lost.
        needless: the number of those queues that went to another staying member, which balance
            did not need.
        skew: the largest share minus the smallest.
        idle: the number of members without a queue.
        is_shared: whether every member takes messages of every queue, which has no owner.
    """

    event: GroupEvent | None
    members: tuple[MemberProcess, ...]
    owners: Mapping[MessageQueue, tuple[int, ...]]
    moved: int = 0
    needless: int = 0
    skew: int = 0
    idle: int = 0
    cost: Cost = NO_COST
    split: SplitView = NO_HARM
    is_shared: bool = False

    @property
    def unowned(self) -> list[MessageQueue]:
        """The queues without an owner."""
        return [queue for queue, owners in self.owners.items() if not owners]

    @property
    def double(self) -> list[MessageQueue]:
        """The queues with several owners."""
        if self.is_shared:
            return []
        return [queue for queue, owners in self.owners.items() if len(owners) > 1]

    def queue_ids(self, number: int) -> list[MessageQueue]:
        """Return a member's queues."""
        return [queue for queue, owners in self.owners.items() if number in owners]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRun:
    """The steps of one strategy through all events."""

    strategy: str
    steps: tuple[Step, ...]

    @property
    def school(self) -> str:
        """The strategy's origin: rocketmq, sparrowmq, kafka, or a newer school of these."""
        if self.strategy in KAFKA_ASSIGNORS:
            return "kafka"
        if self.strategy in (SERVER_NAME, SHARED_NAME):
            return "kafka 4" if self.strategy == SERVER_NAME else "rocketmq 5"
        return "sparrowmq" if self.strategy in SPARROW_STRATEGIES else "rocketmq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of a simulation.

    Args:
        queue_count: the topic's queues over all brokers, 1 to `QUEUES_MAX`.
        member_count: the members before the first event, 1 to `MEMBERS_MAX`.
        events: the events in order, at most `EVENTS_MAX`; each begins once the group has settled.
            Queues times members times one more than the events are at most `LOOKS_MAX`.
        broker_count: the brokers, among which queues are dealt in turn; 1 to `queue_count`.
        room_count: the machine rooms, among which brokers and members are dealt in turn; 1 to
            `broker_count`.
        has_duplicate_id: whether the last member before the first event carries the first's id.

    Raises: ConfigError if a number is out of its range.
    """

    queue_count: int
    member_count: int
    events: tuple[GroupEvent, ...] = ()
    broker_count: int = 1
    room_count: int = 1
    has_duplicate_id: bool = False
    queues: tuple[MessageQueue, ...] = field(init=False)

    def __post_init__(self) -> None:
        _check_range("queues", self.queue_count, 1, QUEUES_MAX)
        _check_range("members", self.member_count, 1, MEMBERS_MAX)
        _check_range("brokers", self.broker_count, 1, self.queue_count, of="queues")
        _check_range("rooms", self.room_count, 1, self.broker_count, of="brokers")
        _check_range("events", len(self.events), 0, EVENTS_MAX)
        most = LOOKS_MAX // (self.member_count * (len(self.events) + 1))
        if self.queue_count > most:
            raise ConfigError(
                f"queues is {self.queue_count}; with {self.member_count} members and "
                f"{len(self.events)} events it must be from 1 to {most}"
            )
        if self.has_duplicate_id and self.member_count < 2:
            raise ConfigError("a duplicate id needs at least two members; give --members 2")
        per_broker = Counter(n % self.broker_count for n in range(self.queue_count))
        queues = [
            MessageQueue(TOPIC, f"room{broker % self.room_count + 1}@broker-{broker + 1}", queue_id)
            for broker, count in per_broker.items()
            for queue_id in range(count)
        ]
        object.__setattr__(self, "queues", tuple(sorted(queues, key=queue_order)))

    def make_member(self, number: int) -> MemberProcess:
        """Return the member with this number, counted from 0; its id names its machine room."""
        last = self.member_count - 1
        born = 0 if self.has_duplicate_id and number == last else number
        room = f"room{born % self.room_count + 1}-" if self.room_count > 1 else ""
        return MemberProcess(number, f"{room}10.0.{born // 250}.{born % 250 + 1}@{101 + born}")


def parse_events(text: str) -> tuple[GroupEvent, ...]:
    """Parse events such as `join,leave,kill:2`; a number is the member's index in id order.

    Raises: ConfigError for an unknown event or a wrong number.
    """
    events = []
    for part in (part.strip() for part in text.split(",")):
        name, colon, index = part.partition(":")
        kinds = {kind.value: kind for kind in GroupEventKind}
        if name not in kinds:
            if not part:
                continue
            hint = did_you_mean(name, kinds, f"the events are {', '.join(kinds)}")
            raise ConfigError(f"unknown event {name!r}{hint}")
        is_number = index.isascii() and index.isdigit() and len(index) < 6
        if colon and (not is_number or kinds[name] is GroupEventKind.JOIN):
            raise ConfigError(f"event {part!r}: write leave:N or kill:N, N counts from 0")
        events.append(GroupEvent(kinds[name], int(index) if colon else None))
    return tuple(events)


def check_strategy(name: str) -> str:
    """Return the name of a strategy as this module spells it; the case of `name` does not matter.

    Raises: ConfigError for an unknown name; the error names the nearest.
    """
    known = {n.lower(): n for n in ALL_NAMES}
    known |= {"machine_room_nearby": "MACHINE_ROOM_NEARBY-AVG"}
    if name.lower() in known:
        return known[name.lower()]
    if name.startswith("MACHINE_ROOM_NEARBY-"):
        strategy_from(name)
        return name
    raise unknown_strategy(name, ALL_NAMES)


def simulate(plan: Plan, strategy: str) -> StrategyRun:
    """Run a group through all events under one strategy.

    Raises: ConfigError for an unknown strategy, or an event of a member that does not exist.
    """
    name = check_strategy(strategy)
    members = [plan.make_member(number) for number in range(plan.member_count)]
    steps: list[Step] = []
    for event in (None, *plan.events):
        before = steps[-1] if steps else None
        if event is not None:
            members = _after(plan, members, event, born=_born(plan, steps))
        steps.append(_step(plan, name, event, _in_order(members), before))
    return StrategyRun(strategy=name, steps=tuple(steps))


def simulate_all(plan: Plan) -> list[StrategyRun]:
    """Run every strategy of RocketMQ, SparrowMQ and Kafka through the same events."""
    return [simulate(plan, name) for name in ALL_NAMES]


def _born(plan: Plan, steps: Sequence[Step]) -> int:
    joins = sum(step.event is not None and step.event.kind is GroupEventKind.JOIN for step in steps)
    return plan.member_count + joins


def _after(
    plan: Plan, members: list[MemberProcess], event: GroupEvent, *, born: int
) -> list[MemberProcess]:
    if event.kind is GroupEventKind.JOIN:
        _check_range("members", len(members) + 1, 1, MEMBERS_MAX)
        return [*members, plan.make_member(born)]
    place = event.place or 0
    if place >= len(members):
        raise ConfigError(
            f"event {event}: the group has {len(members)} members then, counted from 0"
        )
    gone = _in_order(members)[place]
    return [member for member in members if member != gone]


def _in_order(members: Sequence[MemberProcess]) -> tuple[MemberProcess, ...]:
    return tuple(sorted(members, key=lambda m: (java_order(m.client_id), m.number)))


def _step(
    plan: Plan,
    name: str,
    event: GroupEvent | None,
    members: tuple[MemberProcess, ...],
    before: Step | None,
) -> Step:
    owners = _owners(plan, name, members, before)
    loads = Counter(number for taken in owners.values() for number in taken)
    counts = [loads[member.number] for member in members]
    moved, needless = _moves(before, owners, members)
    return Step(
        event=event,
        members=members,
        owners=owners,
        moved=moved,
        needless=needless,
        skew=max(counts, default=0) - min(counts, default=0),
        idle=sum(count == 0 for count in counts),
        cost=_cost(plan, name, event, members, before, owners),
        split=_split(plan, name, members, before),
        is_shared=name == SHARED_NAME,
    )


def _owners(
    plan: Plan, name: str, members: tuple[MemberProcess, ...], before: Step | None
) -> Owners:
    if name == SHARED_NAME:
        return dict.fromkeys(plan.queues, tuple(member.number for member in members))
    if name in KAFKA_ASSIGNORS or name == SERVER_NAME:
        return _kafka_owners(plan, name, members, before)
    cid_all = [member.client_id for member in members]
    return _owners_of(plan, _shares(plan, name, members, cid_all, _holders(before)))


def _owners_of(plan: Plan, shares: Mapping[int, Sequence[MessageQueue]]) -> Owners:
    owners: dict[MessageQueue, list[int]] = {queue: [] for queue in plan.queues}
    for number, share in shares.items():
        for queue in share:
            owners[queue].append(number)
    return {queue: tuple(numbers) for queue, numbers in owners.items()}


def _holders(before: Step | None) -> dict[MessageQueue, str]:
    """Return the client id that holds each queue before an event."""
    if before is None:
        return {}
    ids = {member.number: member.client_id for member in before.members}
    return {queue: ids[numbers[0]] for queue, numbers in before.owners.items() if numbers}


def _shares(
    plan: Plan,
    name: str,
    members: Sequence[MemberProcess],
    cid_all: Sequence[str],
    held: Mapping[MessageQueue, str],
) -> dict[int, Sequence[MessageQueue]]:
    """Return what each of some members, by number, computes from one list of members."""
    if not members:
        return {}
    strategy = _configured(plan, name, members[0])
    if not isinstance(strategy, WholeGroupStrategy):
        each = ((m, _configured(plan, name, m)) for m in members)
        return {m.number: s.allocate("G", m.client_id, plan.queues, cid_all) or [] for m, s in each}
    # All compute the same division.
    owners = strategy.divide_group([TopicView(TOPIC, plan.queues, cid_all)], held)
    found: dict[str, list[MessageQueue]] = {}
    for queue, client_id in owners.items():
        found.setdefault(client_id, []).append(queue)
    return {member.number: found.get(member.client_id, []) for member in members}


class _Rooms:
    """Finds rooms by the simulation's convention: `room1@broker-1` and `room1-10.0.0.1@101`."""

    def broker_deploy_in(self, message_queue: MessageQueue) -> str | None:
        return message_queue.broker_name.partition("@")[0]

    def consumer_deploy_in(self, client_id: str) -> str | None:
        room, dash, _ = client_id.partition("-")
        return room if dash else "room1"


def _configured(plan: Plan, name: str, member: MemberProcess) -> AllocateMessageQueueStrategy:
    """Return a strategy with the settings of a careful user.

    The lists of CONFIG are written once, for the first members, and stay when members change.
    """
    if name == "CONFIG":
        first = _in_order([plan.make_member(number) for number in range(plan.member_count)])
        index = next((i for i, m in enumerate(first) if m.number == member.number), None)
        mine = [] if index is None else plan.queues[index :: len(first)]
        return AllocateMessageQueueByConfig(list(mine))
    if name == "MACHINE_ROOM":
        rooms = {queue.broker_name.partition("@")[0] for queue in plan.queues}
        return AllocateMessageQueueByMachineRoom(rooms)
    if name.startswith("MACHINE_ROOM_NEARBY-"):
        inner = strategy_from(name.removeprefix("MACHINE_ROOM_NEARBY-"))
        return AllocateMachineRoomNearby(inner, _Rooms())
    return strategy_from(name)


def _kafka_owners(
    plan: Plan, name: str, members: tuple[MemberProcess, ...], before: Step | None
) -> Owners:
    """Run the leader's assignor: twice for a protocol of two rounds.

    The coordinator's is as sticky: within one of equal, and the fewest queues move.
    """
    names = {member.number: _kafka_id(member) for member in members}
    owned = {
        names[member.number]: before.queue_ids(member.number) if before else []
        for member in members
    }
    subscribed = dict.fromkeys(names.values(), (TOPIC,))
    assignor = KAFKA_ASSIGNORS["sticky" if name == SERVER_NAME else name]
    shares = assignor(plan.queues, subscribed, owned)
    if name == "cooperative-sticky":
        shares = assignor(plan.queues, subscribed, shares)
    return _owners_of(plan, {number: shares[member_id] for number, member_id in names.items()})


def _kafka_id(member: MemberProcess) -> str:
    # The coordinator adds a random part to the client id; the number stands for it.
    return f"{member.client_id}-{member.number:06d}"


def _moves(
    before: Step | None, owners: Owners, members: tuple[MemberProcess, ...]
) -> tuple[int, int]:
    """Return how many queues staying members lost, and how many of these staying members got."""
    if before is None:
        return 0, 0
    staying = {member.number for member in members} & {m.number for m in before.members}
    moved = needless = 0
    for queue, now in owners.items():
        lost = [number for number in before.owners[queue] if number in staying - set(now)]
        if lost:
            moved += 1
            needless += any(number in staying for number in now)
    return moved, needless


def _cost(
    plan: Plan,
    name: str,
    event: GroupEvent | None,
    members: tuple[MemberProcess, ...],
    before: Step | None,
    owners: Owners,
) -> Cost:
    if event is None or before is None:
        return NO_COST
    changed = sum(set(now) != set(before.owners[queue]) for queue, now in owners.items())
    moved, _ = _moves(before, owners, members)
    if name in KAFKA_ASSIGNORS:
        return _kafka_cost(plan, name, event, len(members), moved=moved, changed=changed)
    if name == SERVER_NAME:
        return _server_cost(event, before, owners, members, moved=moved, changed=changed)
    if name == SHARED_NAME:
        return _shared_cost(plan, event, len(members))
    notices = 0 if event.kind is GroupEventKind.KILL else 2 * plan.broker_count
    is_ours = name in SPARROW_NAMES
    # RocketMQ's members ask for one list; ours ask every broker for its list and queue owners.
    asked = plan.broker_count if is_ours else 1
    agreeing = (plan.broker_count + 2 * asked) * len(members)
    return Cost(
        messages=notices + agreeing + (8 if is_ours else 3) * changed,
        trips=3 if event.kind is GroupEventKind.KILL else 4,
        wait_ms_max=REBALANCE_WAIT_MS,
        stopped=moved if is_ours else 0,
        overlapping=0 if is_ours else moved,
    )


def _kafka_cost(
    plan: Plan, name: str, event: GroupEvent, count: int, *, moved: int, changed: int
) -> Cost:
    is_cooperative = name == "cooperative-sticky"
    notices = {GroupEventKind.JOIN: 4, GroupEventKind.LEAVE: 2, GroupEventKind.KILL: 0}[event.kind]
    others = count - 1 if event.kind is GroupEventKind.JOIN else count
    # A second round takes place only if a staying member lost a queue.
    rounds = 2 if is_cooperative and moved else 1
    handing_over = 4 * changed if is_cooperative else 2 * others + 2 * count
    is_kill = event.kind is GroupEventKind.KILL
    return Cost(
        messages=notices + 2 * others + 4 * count * rounds + handing_over,
        trips=(4 if is_kill else 5) + 4 * (rounds - 1),
        wait_ms_max=rounds * (KAFKA_HEARTBEAT_MS + KAFKA_POLL_MS)
        + (KAFKA_SESSION_MS if is_kill else 0),
        stopped=moved if is_cooperative else plan.queue_count,
        overlapping=0,
    )


def _server_cost(
    event: GroupEvent,
    before: Step,
    owners: Owners,
    members: tuple[MemberProcess, ...],
    *,
    moved: int,
    changed: int,
) -> Cost:
    notices = {GroupEventKind.JOIN: 4, GroupEventKind.LEAVE: 2, GroupEventKind.KILL: 0}[event.kind]
    trips = {GroupEventKind.JOIN: 4, GroupEventKind.LEAVE: 3, GroupEventKind.KILL: 2}[event.kind]
    is_join = event.kind is GroupEventKind.JOIN
    others = len(members) - 1 if is_join else len(members)
    staying = {member.number for member in before.members} & {m.number for m in members}
    givers = {n for queue, now in owners.items() for n in {*before.owners[queue]} - {*now}}
    takers = {
        number
        for queue, now in owners.items()
        for number in set(now) - set(before.owners[queue])
        if staying & set(before.owners[queue])
    }
    confirmations = 2 * (len(givers & staying) + len(takers)) if moved else 0
    if moved:
        # The giver learns of it, if its heartbeat is not the first word; it confirms; a taker asks.
        trips += 5 if is_join else 3
    heartbeats = 2 if moved else 0 if is_join else 1
    is_kill = event.kind is GroupEventKind.KILL
    return Cost(
        messages=notices + 2 * others + confirmations + 4 * changed,
        trips=trips,
        wait_ms_max=KAFKA_SERVER_HEARTBEAT_MS * heartbeats + (KAFKA_SESSION_MS if is_kill else 0),
        stopped=moved,
        overlapping=0,
    )


def _shared_cost(plan: Plan, event: GroupEvent, count: int) -> Cost:
    is_kill = event.kind is GroupEventKind.KILL
    notices = 0 if is_kill else 2 * plan.broker_count
    return Cost(
        messages=notices + (plan.broker_count + 2) * count,
        trips=4 if event.kind is GroupEventKind.JOIN else 0,
        wait_ms_max=POP_INVISIBLE_MS if is_kill else 0,
        stopped=0,
        overlapping=0,
    )


def _split(
    plan: Plan, name: str, members: tuple[MemberProcess, ...], before: Step | None
) -> SplitView:
    """Return the effect of a split view: every second member misses the member listed last."""
    if len(members) < 2 or name == SHARED_NAME:
        return NO_HARM
    if name in KAFKA_ASSIGNORS or name == SERVER_NAME:
        heard_of = len(members) - 1
        return SplitView(0, 0, idle=1 + max(0, heard_of - plan.queue_count))
    everybody = [member.client_id for member in members]
    held = _holders(before)
    behind, others = members[:-1:2], (*members[1:-1:2], members[-1])
    shares: dict[int, Sequence[MessageQueue]] = dict.fromkeys((m.number for m in members), ())
    for cid_all, viewers in ((everybody[:-1], behind), (everybody, others)):
        shares |= _shares(plan, name, viewers, cid_all, held)
    owners = _owners_of(plan, shares)
    double = sum(len(taken) > 1 for taken in owners.values())
    return SplitView(
        unowned=sum(not taken for taken in owners.values()),
        double=0 if name in SPARROW_NAMES else double,
        idle=sum(not share for share in shares.values()),
    )


def _check_range(name: str, value: int, low: int, high: int, *, of: str = "") -> None:
    if not low <= value <= high:
        bound = f", the number of {of}" if of else ""
        raise ConfigError(f"{name} is {value}; it must be from {low} to {high}{bound}")
