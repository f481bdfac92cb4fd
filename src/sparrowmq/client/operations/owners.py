"""The members of a group and the owners of its queues, as every member can see them.

A SparrowMQ broker returns both in one answer: the list of members, and the holders of its queues'
locks. If a broker is not ours, the members are asked instead (GET_CONSUMER_RUNNING_INFO, which
every broker passes on). A member that does not answer in time owns nothing in the result.
Tests: test_handover.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.calling.effects import Operation
from sparrowmq.client.operations.gather import gather_outcomes
from sparrowmq.client.operations.heartbeats import MEMBER_TIMEOUT_MS, consumer_owners, running_info
from sparrowmq.client.running_info import holding_of
from sparrowmq.client.subscriber import RequestFailed, Subscriber
from sparrowmq.coordination.owner_claims import Claim, owners_claimed
from sparrowmq.errors import SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import OwnersListBody
from sparrowmq.strategies.group_strategy import Owners

# A broker that has not answered this many times in a row is left out: it may be away for long.
LOOKS_UNTIL_SILENT = 3
# The members that are asked. In a larger group, the owners are unknown to every member alike.
OWNERS_MEMBERS_MAX = 64


def look_at_brokers(
    subscriber: Subscriber, broker_names: Sequence[str]
) -> Operation[dict[str, OwnersListBody | None]]:
    """Ask brokers for members and owners at the same time; None for a broker that failed."""
    config, history = subscriber.config, subscriber.member.history
    found: dict[str, OwnersListBody | None] = dict.fromkeys(broker_names)
    addresses = {
        name: address
        for name in broker_names
        if (address := subscriber.routes.address(name)) is not None
    }
    outcomes = yield from gather_outcomes(
        [
            consumer_owners(address, config.group, timeout_ms=config.times.invoke_timeout_ms)
            for address in addresses.values()
        ],
        name="owners",
    )
    for name, outcome in zip(addresses, outcomes, strict=True):
        if isinstance(outcome, SparrowError):
            subscriber.report(RequestFailed("list of members", None, outcome))
        else:
            found[name] = outcome
    for name, look in found.items():
        history.note_answer(name, is_silent=look is None or not look.consumer_id_list)
    return found


def find_owners(
    subscriber: Subscriber, looks: dict[str, OwnersListBody]
) -> Operation[Owners | None]:
    """Return the owners of the brokers' queues; None if they cannot be known."""
    owners: dict[MessageQueue, str] = {}
    for name, look in looks.items():
        if look.sparrowmq_owners is None:
            address = subscriber.routes.address(name)
            if address is None or len(look.consumer_id_list) > OWNERS_MEMBERS_MAX:
                return None
            # A member reports its queues of all brokers at once.
            return (yield from _ask_members(subscriber, address, look.consumer_id_list))
        for client_id, queues in look.sparrowmq_owners.items():
            # A broker knows only the locks of its own queues.
            owners |= {queue: client_id for queue in queues if queue.broker_name == name}
    return owners


def _ask_members(subscriber: Subscriber, address: str, cid_all: Sequence[str]) -> Operation[Owners]:
    config = subscriber.config
    others = sorted(set(cid_all) - {config.client_id})
    outcomes = yield from gather_outcomes(
        [
            running_info(address, config.group, client_id=cid, timeout_ms=MEMBER_TIMEOUT_MS)
            for cid in others
        ],
        name="members",
    )
    claims = [
        Claim(cid, queue, at.locked, at.dropped)
        for cid, outcome in zip(others, outcomes, strict=True)
        if not isinstance(outcome, SparrowError)
        for queue, at in outcome.mq_table.items()
    ]
    for owned in subscriber.member.owned_queues():
        is_locked, is_dropped = holding_of(owned)
        claims.append(Claim(config.client_id, owned.queue, is_locked, is_dropped))
    return owners_claimed(claims)
