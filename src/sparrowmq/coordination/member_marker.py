"""The marker that distinguishes members that run SparrowMQ from all other members.

Every request, and so every heartbeat, carries the ordinal of its client's version. Apache's brokers
and ours keep the ordinal for each connection, show it in GET_CONSUMER_CONNECTION_LIST, and use it
for lower bounds only. SparrowMQ's heartbeats add `_MARK` to the ordinal. No release of RocketMQ
comes near the sum, so brokers, members and tools can see which members run SparrowMQ. The language
PYTHON would not show it, since other clients are written in Python too.

Our broker marks its answers to marked members' heartbeats alike: so their producers know that it
delays messages by any time, which Apache's brokers do from version 5 on. It forgets a marked member
early. The broker answers the member's heartbeats with the expiry
that it applies. The member sends three heartbeats in that time, and its lease ends earlier.

Source: ClientChannelInfo.java, MQVersion.java; a version travels as a signed 16 bit number where
headers are binary.
"""

from __future__ import annotations

_MARK = 0x5000
# The highest ordinal of MQVersion.java (HIGHER_VERSION) is below 1,000.
_ORDINALS_END = 0x1000

# Our broker forgets a marked member after this silence, and other members as RocketMQ does.
MARKED_EXPIRY_MS = 15_000
# The number of heartbeats that a marked member sends within the expiry.
HEARTBEATS_PER_EXPIRY = 3
# How long a marked member believes in its queue locks, counted from the sending of the request, and
# how often it renews them; both are far below RocketMQ's 30 s and 20 s.
MARKED_LEASE_MS = 10_000
MARKED_LEASE_RENEWAL_MS = 3_000
# RebalanceLockManager.REBALANCE_LOCK_MAX_LIVE_TIME, RebalanceLockManager.java.
QUEUE_LEASE_BROKER_MS = 60_000
# ProcessQueue.REBALANCE_LOCK_MAX_LIVE_TIME, ProcessQueue.java. Counted from *sending* the request.
QUEUE_LEASE_CLIENT_MS = 30_000
# ProcessQueue.REBALANCE_LOCK_INTERVAL, ProcessQueue.java.
QUEUE_LEASE_RENEWAL_MS = 20_000
# The field of a heartbeat's answer with the expiry in milliseconds.
EXPIRY_FIELD = "sparrowmqExpiryMs"

# The lease of a frozen member must end before another member gets its queues. The last renewal may
# be younger than the last heartbeat, by at most the time between two heartbeats.
assert MARKED_LEASE_MS + MARKED_EXPIRY_MS // HEARTBEATS_PER_EXPIRY <= MARKED_EXPIRY_MS
# Two renewals may fail.
assert 3 * MARKED_LEASE_RENEWAL_MS < MARKED_LEASE_MS
# Otherwise two members of a group may consume one queue at once.
assert QUEUE_LEASE_CLIENT_MS < QUEUE_LEASE_BROKER_MS
# Otherwise an owner loses its lease between two renewals.
assert QUEUE_LEASE_RENEWAL_MS < QUEUE_LEASE_CLIENT_MS


def mark_version(version: int) -> int:
    """Return the version that a SparrowMQ member's heartbeats carry."""
    return version + _MARK


def is_marked(version: int) -> bool:
    """Return whether a version, as a connection list shows it, is a SparrowMQ member's."""
    return _MARK <= version < _MARK + _ORDINALS_END


def unmark_version(version: int) -> int:
    """Return RocketMQ's ordinal in a version, marked or not."""
    return version - _MARK if is_marked(version) else version
