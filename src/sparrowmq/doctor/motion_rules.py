"""R18, R26, R27: the cost of a join, and members that cannot stay connected. Pure.

None of these faults leaves a queue unread by itself; they keep a group from coming to rest.
Tests: test_diagnosis_motion.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparrowmq.coordination.member_marker import is_marked
from sparrowmq.doctor.finding import Finding, Severity
from sparrowmq.doctor.group_snapshot import BrokerView, MemberConnection
from sparrowmq.doctor.group_view import GroupView
from sparrowmq.doctor.membership_rules import serving_brokers
from sparrowmq.doctor.ownership import Shares, allocate_all
from sparrowmq.strategies.registry import find_named
from sparrowmq.words import Phrase, count_of, format_duration

# From this share of moved queues on, a join is worth a finding.
CHURN_SHARE_MIN = 0.6
# Smaller groups lose little by a move; the moves of larger groups take long to compute.
CHURN_QUEUES_MIN, CHURN_QUEUES_MAX = 8, 1_024
CHURN_MEMBERS_MAX = 64
# The part of a strategy's name by which its joins move few queues on average. Three ids tried with
# a small group may by chance move more.
_BY_HASH = "CONSISTENT_HASH"
# A member that needs longer than this to register at every broker starts slowly.
SLOW_START_MS = 3_000


def find_churn(view: GroupView) -> list[Finding]:
    """R18: under the group's strategy, one more member moves most queues."""
    snapshot = view.snapshot
    strategy = find_named(snapshot.strategy)
    cids = list(dict.fromkeys(c.client_id for c in view.ownership.connections))
    topics = [topic for topic in snapshot.user_topics if topic.subscribe_queues]
    count = sum(len(topic.subscribe_queues) for topic in topics)
    if strategy is None or snapshot.is_broadcasting or not 2 <= len(cids) <= CHURN_MEMBERS_MAX:
        return []
    if _BY_HASH in snapshot.strategy or not CHURN_QUEUES_MIN <= count <= CHURN_QUEUES_MAX:
        return []

    def divide(listed: Sequence[str]) -> Shares:
        owners = allocate_all(snapshot, strategy, listed)
        return {queue: owners[queue] for topic in topics for queue in topic.subscribe_queues}

    before = divide(cids)
    # Chance decides the place of the new member's id: before all others, in the middle, or last.
    places = {0, len(cids) // 2, len(cids)}
    moved: list[int] = []
    for place in sorted(places):
        newcomer = f"{cids[place - 1]}!" if place else "!"
        after = divide([*cids[:place], newcomer, *cids[place:]])
        moved.append(sum(after.get(q) != o for q, o in before.items()))
    mean = sum(moved) / len(moved)
    if mean < CHURN_SHARE_MIN * count:
        return []
    needed = count // (len(cids) + 1)
    return [
        Finding(
            rule="R18",
            severity=Severity.INFO,
            title=Phrase(
                "one more member would move {share} of the queues", share=f"{mean / count:.0%}"
            ),
            evidence=(
                view.describe_size(count, len(cids)),
                Phrase(
                    "a new member whose id sorts first, in the middle or last moves {moved} "
                    "queues; {needed} would be enough",
                    moved=", ".join(str(n) for n in moved),
                    needed=f"{needed}",
                ),
            ),
            consequence=Phrase(
                "whenever a member joins or leaves, most queues pause, and messages in hand "
                "that were not committed are consumed again"
            ),
            remedy=(
                "CONSISTENT_HASH moves fewer queues but makes shares unequal; where every "
                "member runs SparrowMQ, MINIMAL_MOVE moves the fewest queues; `simulate` "
                "compares all strategies"
            ),
        )
    ]


def find_reconnects(view: GroupView) -> Iterator[Finding]:
    """R26: members have the same client ids as at the first sample, but new connections."""
    then = {broker.broker_name: _addresses(broker) for broker in view.snapshot.first.brokers}
    evidence: list[Phrase] = []
    members: list[str] = []
    for broker in view.snapshot.last.brokers:
        for client_id, address in _addresses(broker).items():
            before = then.get(broker.broker_name, {}).get(client_id, address)
            if before != address:
                evidence.append(
                    Phrase(
                        "{id} at {broker}: connected from {before}, then from {address}",
                        id=client_id,
                        broker=broker.broker_name,
                        before=before,
                        address=address,
                    )
                )
                members.append(client_id)
    if not evidence:
        return
    names = tuple(dict.fromkeys(members))
    yield Finding(
        rule="R26",
        severity=Severity.WARN if len(evidence) > 1 else Severity.INFO,
        title=Phrase(
            "{members} reconnected between the samples", members=count_of(len(names), "member")
        ),
        evidence=tuple(evidence),
        consequence=Phrase(
            "brokers notify the whole group of every closed and every new connection, and "
            "every notice makes every member rebalance; a client that closes its connection "
            "after one late answer keeps the group rebalancing"
        ),
        remedy=(
            "if `watch` shows reconnects again and again: check the broker's load, the "
            "network (answers later than 3 s, an idle time-out of a firewall or proxy) and "
            "the clients' logs for closed channels; upgrade clients that close a connection "
            "after one time-out"
        ),
        members=names,
    )


def _addresses(broker: BrokerView) -> dict[str, str]:
    """Return the known address of each member that has exactly one connection to a broker."""
    connections: dict[str, list[MemberConnection]] = {}
    for connection in broker.connections:
        connections.setdefault(connection.client_id, []).append(connection)
    return {
        client_id: found[0].address
        for client_id, found in connections.items()
        if len(found) == 1 and found[0].address
    }


def find_slow_start(view: GroupView) -> Iterator[Finding]:
    """R27: a first round of heartbeats takes long because brokers are many or slow."""
    others = [c for c in view.ownership.connections if not is_marked(c.version)]
    brokers = [broker for broker in serving_brokers(view) if broker.answer_ms is not None]
    total_ms = sum(broker.answer_ms or 0 for broker in brokers)
    if not others or total_ms <= SLOW_START_MS:
        return
    slowest = sorted(brokers, key=lambda broker: -(broker.answer_ms or 0))[:3]
    yield Finding(
        rule="R27",
        severity=Severity.WARN,
        title=Phrase(
            "a member takes about {seconds} s to send heartbeats to {brokers}",
            seconds=f"{total_ms / 1000:.1f}",
            brokers=count_of(len(brokers), "broker"),
        ),
        evidence=(
            Phrase(
                "all brokers together took {time} to answer this machine",
                time=format_duration(total_ms),
            ),
            *(
                Phrase(
                    "{broker} at {address}: {n} ms",
                    broker=b.broker_name,
                    address=b.address,
                    n=f"{b.answer_ms:,}",
                )
                for b in slowest
            ),
        ),
        consequence=Phrase(
            "RocketMQ's client sends heartbeats to one broker after another and rebalances "
            "afterwards: the client starts late, and the last broker may list the member "
            "too late for the other members"
        ),
        remedy=(
            "check the slow brokers; clients that send heartbeats to all brokers at once "
            "(SparrowMQ; newer Java clients with enableConcurrentHeartbeat) wait for the "
            "slowest broker only"
        ),
        members=tuple(dict.fromkeys(c.client_id for c in others)),
    )
