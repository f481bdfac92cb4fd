"""The marker by which members that run SparrowMQ are known from all others.

A heartbeat carries, as every request does, the ordinal of its client's version. Brokers keep it
for each connection and show it in GET_CONSUMER_CONNECTION_LIST, Apache's like ours, and use it for
nothing but lower bounds. SparrowMQ's heartbeats add `_MARK` to it, which no release of RocketMQ
comes near, so that brokers, members and tools can see who runs SparrowMQ; the language PYTHON
would not show it, since other clients are written in Python too.

A marked member may be forgotten early: our broker answers its heartbeats with the expiry it
applies, the member sends three in that time, and holds itself to a lease that ends before it.

Source: ClientChannelInfo.java, MQVersion.java; a version travels as a signed 16 bit number where
headers are binary.
"""

from __future__ import annotations

_MARK = 0x5000
# The highest ordinal of MQVersion.java (HIGHER_VERSION) is below 1,000.
_ORDINALS_END = 0x1000

# Our broker forgets a marked member that has been silent for so long; others as RocketMQ does.
MARKED_EXPIRY_MS = 15_000
# So many heartbeats fall into the expiry.
HEARTBEATS_PER_EXPIRY = 3
# What a marked member believes of its queue locks, counted from the sending of the request. It
# renews at every lease interval; both are far below RocketMQ's 30 s and 20 s.
MARKED_LEASE_MS = 10_000
MARKED_LEASE_RENEWAL_MS = 3_000
# The field of a heartbeat's answer with the expiry in milliseconds.
EXPIRY_FIELD = "sparrowmqExpiryMs"

# A frozen member's lease has run out before another gets its queues: the last renewal may be as
# much younger than the last heartbeat as two heartbeats are apart.
assert MARKED_LEASE_MS + MARKED_EXPIRY_MS // HEARTBEATS_PER_EXPIRY <= MARKED_EXPIRY_MS
# Two renewals may fail.
assert 3 * MARKED_LEASE_RENEWAL_MS < MARKED_LEASE_MS


def mark_version(version: int) -> int:
    """Return the version that a SparrowMQ member's heartbeats carry."""
    return version + _MARK


def is_marked(version: int) -> bool:
    """Return whether a version, as a connection list shows it, is a SparrowMQ member's."""
    return _MARK <= version < _MARK + _ORDINALS_END


def unmark_version(version: int) -> int:
    """Return RocketMQ's ordinal in a version, marked or not."""
    return version - _MARK if is_marked(version) else version
