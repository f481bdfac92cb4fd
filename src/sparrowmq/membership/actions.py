"""A group member's actions, which an operation carries out, and its facts, which the host logs.

`GroupMember.due` returns actions. An operation carries out each action and reports the result by
the method that the action names. An action on a queue carries the queue's *epoch*, a number that
grows each time the member is given the queue. A result of an earlier epoch changes nothing.
Tests: test_member.py.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec

from sparrowmq.model import MessageExt, MessageQueue


class RefreshRoutes(NamedTuple):
    """Ask for the routes of every subscribed topic. Then `routes_refreshed`."""


class Heartbeat(NamedTuple):
    """Send every broker a heartbeat with our subscriptions. Then `heartbeat_done`."""


class Rebalance(NamedTuple):
    """Find our share of every topic's queues. Then `rebalanced`."""


class Stored(NamedTuple):
    """Where and when a broker has stored a message of a queue."""

    offset: int
    position: int
    timestamp_ms: int


class Acquire(NamedTuple):
    """Take a queue's lock if the queue is to be locked; then find the offset to begin at.

    If the member had the queue before, the broker is also asked whether it still has `newest`, the
    newest message that was pulled then. Then `acquired`, `lock_refused` or `acquire_failed`.
    """

    queue: MessageQueue
    epoch: int
    wants_lock: bool
    newest: Stored | None = None


class Regain(NamedTuple):
    """Find out whether a queue may go on, after its lock ran out or its connection was lost.

    The lock is asked for if `wants_lock`. The group's offset is read, and the broker is asked
    whether it still has `newest`, the newest message that was pulled. Then `regained`,
    `lock_refused` or `acquire_failed`.
    """

    queue: MessageQueue
    epoch: int
    wants_lock: bool
    newest: Stored | None


class RenewLocks(NamedTuple):
    """Renew the locks of queues at one broker. Then `locks_renewed`."""

    broker_name: str
    queues: tuple[MessageQueue, ...]
    sent_ms: int


class AskMembers(NamedTuple):
    """Ask the other members which queues they have in hand. Then `members_asked`."""

    queues: tuple[MessageQueue, ...]


class Unlock(NamedTuple):
    """Give a queue's lock back and wait for the answer. Then `unlocked`, whatever the answer."""

    queue: MessageQueue
    epoch: int


class Pull(NamedTuple):
    """Pull from an offset. Then `pulled`, `pull_moved` or `pull_failed`."""

    queue: MessageQueue
    epoch: int
    offset: int


class AbandonPull(NamedTuple):
    """Stop waiting for the answer to a pull; nothing is reported."""

    queue: MessageQueue
    epoch: int


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Call the listener with each of some batches of a queue's messages.

    Then, for each call by its place, `consumed`, `consumed_all` or `take_back`.
    """

    queue: MessageQueue
    epoch: int
    delivery_id: int
    batches: tuple[tuple[MessageExt, ...], ...]


class SendBack(NamedTuple):
    """Send messages back to the broker, which delivers them again later. Then `sent_back`.

    `delay_level`: 0 lets the broker choose, -1 means the dead letter queue.
    """

    queue: MessageQueue
    epoch: int
    messages: tuple[MessageExt, ...]
    delay_level: int


class Commit(NamedTuple):
    """Commit an offset and wait for the answer. Then `committed` or `commit_failed`.

    The last commit of a queue that is given up has `is_last`.
    """

    queue: MessageQueue
    epoch: int
    offset: int
    is_last: bool


class CallOnAssign(NamedTuple):
    """Call the user's `on_assign`, before the first delivery. Then `callback_returned`."""

    queue: MessageQueue
    epoch: int


class CallOnRevoke(NamedTuple):
    """Call the user's `on_revoke`, after the last delivery. Then `callback_returned`."""

    queue: MessageQueue
    epoch: int


class Leave(NamedTuple):
    """Ask every broker to remove this member from its list of the group. Then `left`."""


Action: TypeAlias = (
    RefreshRoutes
    | Heartbeat
    | Rebalance
    | Acquire
    | Regain
    | RenewLocks
    | AskMembers
    | Unlock
    | Pull
    | AbandonPull
    | Deliver
    | SendBack
    | Commit
    | CallOnAssign
    | CallOnRevoke
    | Leave
)


class AssignmentChanged(NamedTuple):
    """The member's share has changed to `assigned`; all three tuples are in queue order."""

    assigned: tuple[MessageQueue, ...]
    gained: tuple[MessageQueue, ...]
    revoked: tuple[MessageQueue, ...]


class DuplicateClientId(NamedTuple):
    """The broker lists our client id several times: some queues are unowned.

    `addresses` are the addresses of the connections that use the client id, our own included; ()
    where the broker does not list addresses.
    """

    group: str
    client_id: str
    times_listed: int
    cid_all: tuple[str, ...]
    addresses: tuple[str, ...] = ()


class NotListed(NamedTuple):
    """The broker's list of members lacks our client id although we have sent heartbeats."""

    group: str
    client_id: str
    cid_all: tuple[str, ...]


class OffsetCorrected(NamedTuple):
    """The broker lacks the offset that we pulled from; consumption goes on at another offset."""

    queue: MessageQueue
    wanted_offset: int
    corrected_offset: int


class OffsetReset(NamedTuple):
    """The broker had the queue go on at another offset: the group's offset was reset."""

    queue: MessageQueue
    own_offset: int
    reset_offset: int


class DrainTimedOut(NamedTuple):
    """A queue was given up although listeners still run; another member gets their messages."""

    queue: MessageQueue
    in_flight_count: int


class StoodStill(NamedTuple):
    """The member took no step for so long that its locks have run out; it asks before it goes on.

    `call_count` calls of the listener were under way.
    """

    still_ms: int
    call_count: int


class QueueLost(NamedTuple):
    """A queue is not as the member knew it: its lock ran out, or its group's offset was moved.

    Messages of the queue that listeners still have are neither committed nor sent back. If the
    member had stood still shortly before, `still_ms` is how long; else it is 0.
    """

    queue: MessageQueue
    still_ms: int = 0


class CommitLost(NamedTuple):
    """The last commit of a queue that was given up failed; some messages will come again."""

    queue: MessageQueue
    offset: int


Fact: TypeAlias = (
    AssignmentChanged
    | DuplicateClientId
    | NotListed
    | OffsetCorrected
    | OffsetReset
    | DrainTimedOut
    | QueueLost
    | StoodStill
    | CommitLost
)
