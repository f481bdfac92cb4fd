"""Views of a group of one topic, made by hand: of any owners, at any time."""

from __future__ import annotations

from collections.abc import Mapping

from sparrowmq.coordination.member_marker import mark_version
from sparrowmq.doctor.group_snapshot import (
    BROADCASTING,
    BrokerView,
    GroupSnapshot,
    HeldQueue,
    MemberConnection,
    MemberReport,
    QueueProgress,
    Sample,
    SubscriptionView,
    TopicQueues,
    TopicSnapshot,
)
from sparrowmq.doctor.group_view import GroupView, make_view
from sparrowmq.doctor.ownership import Ownership
from sparrowmq.model import MessageQueue

QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]
Q0, Q1, Q2, Q3 = QUEUES
Owners = Mapping[MessageQueue, tuple[str, ...]]
OF_A: Owners = dict.fromkeys(QUEUES, ("a",))
# Each queue has so many messages in its owner's hands.
IN_HAND = {Q2: 7, Q3: 5}


def view_at(
    timestamp_ms: int,
    owners: Owners = OF_A,
    *,
    before: GroupView | None = None,
    is_watched: bool = True,
    members: Mapping[str, int] | None = None,
    marked: bool = False,
    offsets: int | Mapping[MessageQueue, int] = 100,
    lag: int = 0,
    subscription: str = "*",
    strategy: str = "AVG",
    is_broadcasting: bool = False,
) -> GroupView:
    """Make a view.

    Args:
        owners: the owners of the topic's queues.
        before: the view before, and whether it was recent.
        members: the number of processes with each client id; by default one for each owner.
        offsets: the committed offset of all queues, or of each.
        lag: the unconsumed messages of queue 0.
    """
    ids = members if members is not None else {each: 1 for some in owners.values() for each in some}
    version = mark_version(401) if marked else 401
    connection_of = {each: MemberConnection(each, f"{each}:1", version=version) for each in ids}
    held = {
        queue: tuple(connection_of.get(each, MemberConnection(each, "")) for each in some)
        for queue, some in owners.items()
    }
    at = {q: offsets if isinstance(offsets, int) else offsets[q] for q in owners}
    broker = BrokerView(
        broker_name="broker-a",
        cid_all=tuple(each for each, n in ids.items() for _ in range(n)),
        subscriptions=(SubscriptionView("T", subscription),) if ids else (),
        message_model=BROADCASTING if is_broadcasting else "CLUSTERING",
    )
    snapshot = GroupSnapshot(
        group="G",
        samples=(
            Sample(
                at_ms=timestamp_ms,
                timestamp_ms=timestamp_ms,
                brokers=(broker,),
                progress=tuple(QueueProgress(q, at[q] + lag * (q == Q0), at[q]) for q in owners),
            ),
        ),
        topics=(
            TopicSnapshot(topic="T", queues=(TopicQueues("broker-a", len(owners), len(owners)),)),
        ),
        reports=(
            MemberReport(
                client_id="a",
                held=tuple(
                    HeldQueue(queue, cached_count=count, commit_offset=at[queue])
                    for queue, count in IN_HAND.items()
                    if queue in at
                ),
            ),
        ),
        strategy=strategy,
    )
    connections = tuple(connection_of[each] for each, n in ids.items() for _ in range(n))
    ownership = Ownership(
        connections=connections, falls_to=held, owners=held, is_broadcasting=is_broadcasting
    )
    known = {} if before is None else before.standings
    return make_view(snapshot, ownership, known, is_watched=is_watched)


BEFORE = view_at(1_000)
JOINED_OWNERS: Owners = {Q0: ("a",), Q1: ("a",), Q2: ("b",), Q3: ()}
JOINED = view_at(2_000, JOINED_OWNERS, before=BEFORE, offsets=120)
