"""Acquire queues and give them back: their locks and their start positions.

The start position is read once the lock is held, so that it includes the former owner's last
commit. If the former owner is no longer listed, its last commit was answered before it left, and
lock and start position are asked for at once. If no master answers, no member can hold the lock,
and the queue is consumed without it.
Source: RebalanceImpl.lock, lockAll and unlock, RebalancePushImpl.computePullFromWhere,
MQClientAPIImpl.lockBatchMQ and unlockBatchMQ.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sparrowmq.calling.effects import Now, Operation, Sleep
from sparrowmq.client.operations.gather import gather, gather_outcomes
from sparrowmq.client.operations.heartbeats import MEMBER_TIMEOUT_MS, is_silence, running_info
from sparrowmq.client.operations.offsets import max_offset, query_offset, search_offset
from sparrowmq.client.operations.pull import make_pull_header, pull
from sparrowmq.client.operations.request import ask, decode_answer
from sparrowmq.client.subscriber import BegunAtEnd, RequestFailed, Subscriber
from sparrowmq.errors import (
    BrokerError,
    ConnectFailed,
    SparrowError,
    TransportError,
)
from sparrowmq.membership.actions import (
    Acquire,
    AskMembers,
    Regain,
    RenewLocks,
    Stored,
    Unlock,
)
from sparrowmq.membership.group_offset import KnownOffset
from sparrowmq.membership.process_queue import stored_of
from sparrowmq.membership.start_position import (
    AskByTimestamp,
    StartPosition,
    UseOffset,
    choose_start_position,
)
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.headers import LockBatchRequestHeader
from sparrowmq.protocol.record import decode_messages

# RebalanceImpl locks and unlocks with a timeout of 1000 ms.
LOCK_TIMEOUT_MS = 1_000
# The members that are asked for their queues; a larger group waits for a refused lock.
IN_HAND_MEMBERS_MAX = 127
# How long a SparrowMQ broker lets a refused request for a lock wait for the unlock.
LOCK_WAIT_MS = 500
# How often an unlock is repeated until it is answered, and the pause before each repetition.
UNLOCK_TIMES_MAX = 5
UNLOCK_RETRY_MS = 500


class Lock(NamedTuple):
    """The answer to a request for a queue's lock.

    Args:
        is_held: whether we hold the lock; None if no member can hold it.
        stands_in: see `QueueLease.stands_in`.
    """

    is_held: bool | None
    stands_in: bool | None = None


_NO_LOCK = Lock(None)


class Locks(NamedTuple):
    """The queues whose lock this client holds now, and those it may consume as a stand-in."""

    held: frozenset[MessageQueue]
    stood_in: frozenset[MessageQueue] | None


class _Start(NamedTuple):
    """A queue's start position, and whether the group has committed it."""

    offset: int
    is_committed: bool


def acquire(subscriber: Subscriber, action: Acquire) -> Operation[None]:
    """Carry out `Acquire`: lock a queue, find its start position, report both to the member."""
    queue, epoch, wants_lock, newest = action
    config, member = subscriber.config, subscriber.member
    is_listed = member.history.is_owner_listed(
        queue, subscriber.strategy, group=config.group, client_id=config.client_id
    )
    sent_ms: int = yield Now()
    lock = _NO_LOCK
    start: _Start | None = None
    try:
        if wants_lock and is_listed:
            lock = yield from _try_lock(subscriber, queue, wait_ms=LOCK_WAIT_MS)
        elif wants_lock:
            lock, start = yield from _try_lock_and_find_start(subscriber, queue)
        now_ms: int = yield Now()
        if lock.is_held is False and not (
            member.lock_refused(
                queue,
                epoch,
                is_owner_listed=is_listed,
                stands_in=lock.stands_in,
                now_ms=now_ms,
            )
            and start is not None
        ):
            subscriber.wake.set()
            return
        if start is None:
            start = yield from _find_start(subscriber, queue)
        # A user who commits by hand wants again what was not committed.
        has_newest = config.auto_commit
        if has_newest and newest is not None:
            has_newest = yield from _has_message(subscriber, queue, newest)
        now_ms = yield Now()
        member.acquired(
            queue,
            epoch,
            offset=start.offset,
            is_committed=start.is_committed,
            has_newest=has_newest,
            lock_sent_ms=sent_ms if lock.is_held else None,
            now_ms=now_ms,
        )
    except SparrowError as error:
        yield from _note_failed(subscriber, action, error)
    subscriber.wake.set()


def regain(subscriber: Subscriber, action: Regain) -> Operation[None]:
    """Carry out `Regain`: lock a queue in hand again, and ask what its broker knows of it."""
    queue, epoch, wants_lock, newest = action
    member = subscriber.member
    sent_ms: int = yield Now()
    lock = _NO_LOCK
    try:
        if wants_lock:
            lock = yield from _try_lock(subscriber, queue, wait_ms=0)
        if lock.is_held is False:
            now_ms: int = yield Now()
            member.lock_refused(
                queue, epoch, is_owner_listed=True, stands_in=lock.stands_in, now_ms=now_ms
            )
        else:
            found = yield from _find_committed(subscriber, queue, is_sure=True)
            if found is None and newest is None:
                address = subscriber.get_broker_address(queue)
                known = subscriber.known_offsets.find(queue, address)
                if known is not None and (newest := known.newest) is None:
                    found = yield from _find_forgotten(subscriber, queue)
            has_newest = newest is None or (yield from _has_message(subscriber, queue, newest))
            if has_newest and not _tells_of_others(subscriber, queue, found):
                found = None
            now_ms = yield Now()
            member.regained(
                queue,
                epoch,
                found=found,
                has_newest=has_newest,
                lock_sent_ms=sent_ms if lock.is_held else None,
                now_ms=now_ms,
            )
    except SparrowError as error:
        yield from _note_failed(subscriber, action, error)
    subscriber.wake.set()


def _note_failed(
    subscriber: Subscriber, action: Acquire | Regain, error: SparrowError
) -> Operation[None]:
    """Report that a queue was not acquired or regained; the member tries again a little later."""
    member = subscriber.member
    what = "start offset" if isinstance(action, Acquire) else "committed offset"
    subscriber.report(RequestFailed(what, action.queue, error))
    now_ms: int = yield Now()
    if error.refresh_route:
        member.queue_moved(now_ms)
    if (owned := member.find_queue(action.queue, action.epoch)) is not None:
        owned.acquire_failed(now_ms)


def _find_forgotten(subscriber: Subscriber, queue: MessageQueue) -> Operation[int | None]:
    """Return where the group begins if the broker has forgotten its offset; None to go on.

    With the offset the broker may have lost messages before it, and stored others in their place;
    who has pulled none cannot tell. A group that begins at the end goes on: it would skip more.
    """
    committed = yield from _find_committed(subscriber, queue, is_sure=False)
    start = _choose_start(subscriber, queue, committed)
    return start.offset if isinstance(start, UseOffset) else None


def _tells_of_others(subscriber: Subscriber, queue: MessageQueue, found: int | None) -> bool:
    """Return whether an offset at the broker may be the work of the group's other members.

    A user who commits by hand is behind what was finished; who assigns queues shares them by hand.
    """
    if subscriber.is_assigned or found is None:
        return False
    address = subscriber.get_broker_address(queue)
    if subscriber.known_offsets.find_newer(queue, address, found) is not None:
        return False
    own_offset = subscriber.member.finished_offset(queue)
    return subscriber.config.auto_commit or own_offset is None or found > own_offset


def _has_message(subscriber: Subscriber, queue: MessageQueue, message: Stored) -> Operation[bool]:
    """Return whether the broker still has a message; false also if another one took its place."""
    config = subscriber.config
    header = make_pull_header(config.group, queue, offset=message.offset, count_max=1)
    address = subscriber.get_broker_address(queue)
    result = yield from pull(address, header, timeout_ms=config.times.invoke_timeout_ms)
    found = decode_messages(result.records, broker_name=queue.broker_name).messages
    return bool(found) and stored_of(found[0]) == message


def _find_committed(
    subscriber: Subscriber, queue: MessageQueue, *, is_sure: bool
) -> Operation[int | None]:
    """Return the group's committed offset of a queue, None without any.

    Args:
        is_sure: whether "none" must not be answered with 0.
    """
    if subscriber.is_broadcasting:
        return subscriber.local_offsets.get(queue)
    config = subscriber.config
    found = yield from query_offset(
        subscriber.get_broker_address(queue),
        config.group,
        queue=queue,
        set_zero_if_not_found=False if is_sure else None,
        timeout_ms=config.times.invoke_timeout_ms,
    )
    return found


def _try_lock_and_find_start(
    subscriber: Subscriber, queue: MessageQueue
) -> Operation[tuple[Lock, _Start]]:
    operations: list[Operation[Any]] = [
        _try_lock(subscriber, queue, wait_ms=0),
        _find_start(subscriber, queue),
    ]
    lock, start = yield from gather(operations, name="lock and start")
    return lock, start


def _try_lock(subscriber: Subscriber, queue: MessageQueue, *, wait_ms: int) -> Operation[Lock]:
    """Ask for a queue's lock.

    Args:
        wait_ms: how long a SparrowMQ broker may let the request wait for the lock.

    Raises: TransportError if the broker may have given the lock but did not answer.
    """
    address = subscriber.routes.master_of(queue)
    if address is None:
        return _NO_LOCK
    config = subscriber.config
    try:
        given = yield from lock_batch(
            address,
            config.group,
            client_id=config.client_id,
            queues=[queue],
            wait_ms=wait_ms,
            # Many members of one process wait for their turn to read the answer.
            timeout_ms=config.times.invoke_timeout_ms,
        )
    except (ConnectFailed, BrokerError) as error:
        subscriber.report(RequestFailed("lock", queue, error))
        return _NO_LOCK
    return Lock(queue in given.held, None if given.stood_in is None else queue in given.stood_in)


def _find_start(subscriber: Subscriber, queue: MessageQueue) -> Operation[_Start]:
    """Find a queue's start position."""
    config = subscriber.config
    timeout_ms = config.times.invoke_timeout_ms
    address = subscriber.get_broker_address(queue)
    # RocketMQ's 0 for "none" while the first message is in memory would hide a chosen time; in the
    # retry topic it keeps messages that failed before the first commit.
    has_time = isinstance(config.start, datetime) and queue.topic != subscriber.retry_topic
    committed = yield from _find_committed(subscriber, queue, is_sure=has_time)
    known = subscriber.known_offsets.find_newer(queue, address, committed)
    if known is not None and (
        known.newest is None or (yield from _has_message(subscriber, queue, known.newest))
    ):
        return _Start(known.offset, is_committed=False)
    if committed is not None and not subscriber.is_broadcasting:
        subscriber.known_offsets.note(queue, KnownOffset(address, committed, None))
    start = _choose_start(subscriber, queue, committed)
    if isinstance(start, UseOffset):
        return _Start(start.offset, is_committed=committed is not None)
    if isinstance(start, AskByTimestamp):
        offset = yield from search_offset(
            address, queue, timestamp_ms=start.timestamp_ms, timeout_ms=timeout_ms
        )
    else:
        offset = yield from max_offset(address, queue, timeout_ms=timeout_ms)
        if offset:
            subscriber.report(BegunAtEnd(queue, offset))
    return _Start(offset, is_committed=False)


def _choose_start(
    subscriber: Subscriber, queue: MessageQueue, committed: int | None
) -> StartPosition:
    config = subscriber.config
    return choose_start_position(
        config.consume_from_where,
        committed,
        topic=queue.topic,
        consume_timestamp_ms=subscriber.consume_timestamp_ms,
        queue_is_new=config.added_queues_from_first and subscriber.member.history.is_new(queue),
    )


def renew_locks(subscriber: Subscriber, action: RenewLocks) -> Operation[None]:
    """Carry out `RenewLocks`: renew the locks of queues that have one broker name.

    The queues of a static topic have one, and several brokers.
    """
    queues_at: dict[str | None, list[MessageQueue]] = {}
    for queue in action.queues:
        queues_at.setdefault(subscriber.routes.master_of(queue), []).append(queue)
    for address, queues in queues_at.items():
        yield from _renew_locks_at(subscriber, address, action._replace(queues=tuple(queues)))


def _renew_locks_at(
    subscriber: Subscriber, address: str | None, action: RenewLocks
) -> Operation[None]:
    config, member = subscriber.config, subscriber.member
    held: frozenset[MessageQueue] | None = None
    if address is not None:
        try:
            held, _ = yield from lock_batch(
                address, config.group, client_id=config.client_id, queues=action.queues
            )
        except SparrowError as error:
            subscriber.report(RequestFailed("lock", None, error))
    now_ms: int = yield Now()
    member.locks_renewed(action, held=held, now_ms=now_ms)
    subscriber.wake.set()


def ask_members(subscriber: Subscriber, action: AskMembers) -> Operation[None]:
    """Carry out `AskMembers`; a broker passes the question on to each member."""
    config, member = subscriber.config, subscriber.member
    topics = {queue.topic for queue in action.queues}
    listed = {cid for topic in topics for cid in member.history.members(topic)}
    others = sorted(listed - {config.client_id})
    address = subscriber.routes.master_of(action.queues[0])
    in_hand: frozenset[MessageQueue] | None = None
    if address is not None and len(others) <= IN_HAND_MEMBERS_MAX:
        questions = [
            running_info(address, config.group, client_id=cid, timeout_ms=MEMBER_TIMEOUT_MS)
            for cid in others
        ]
        outcomes = yield from gather_outcomes(questions, name="what members have in hand")
        tables = [info.mq_table for info in outcomes if not isinstance(info, SparrowError)]
        errors = [error for error in outcomes if isinstance(error, SparrowError)]
        if not any(map(is_silence, errors)):
            # A member that is not connected now soon leaves the list or comes back: ask again soon.
            unknown = action.queues if errors else ()
            in_hand = frozenset([queue for table in tables for queue in table]).union(unknown)
    now_ms: int = yield Now()
    member.members_asked(action, in_hand=in_hand, now_ms=now_ms)
    subscriber.wake.set()


def unlock(subscriber: Subscriber, action: Unlock) -> Operation[None]:
    """Carry out `Unlock`: give a queue's lock back.

    An unlock that may still be under way is repeated until the broker answers one. Otherwise the
    late unlock might arrive after the queue was locked again and release the new lock.
    """
    queue, epoch = action
    config = subscriber.config
    may_be_under_way = False
    for _ in range(UNLOCK_TIMES_MAX):
        address = subscriber.routes.master_of(queue)
        if address is None:
            break
        try:
            yield from unlock_batch(
                address, config.group, client_id=config.client_id, queues=[queue]
            )
            break
        except SparrowError as error:
            # The lock ends with its lease.
            subscriber.report(RequestFailed("unlock", queue, error))
            is_unknown = isinstance(error, TransportError) and error.outcome_unknown
            may_be_under_way = may_be_under_way or is_unknown
            if not may_be_under_way:
                break
            yield Sleep(UNLOCK_RETRY_MS)
    if (owned := subscriber.member.find_queue(queue, epoch)) is not None:
        owned.unlocked()
    subscriber.wake.set()


def lock_batch(
    address: str,
    group: str,
    *,
    client_id: str,
    queues: Sequence[MessageQueue],
    wait_ms: int | None = None,
    timeout_ms: int = LOCK_TIMEOUT_MS,
) -> Operation[Locks]:
    """Ask a master for the locks of queues, or renew them.

    Args:
        wait_ms: how long a SparrowMQ broker may let the request for one queue wait for its lock;
            None if it need not say which queues the client stands in for. Other brokers answer at
            once.

    Raises: TransportError, BrokerError.
    """
    request = LockBatchRequestBody(client_id=client_id, consumer_group=group, mq_set=list(queues))
    reply = yield from ask(
        address,
        RequestCode.LOCK_BATCH_MQ,
        None if wait_ms is None else LockBatchRequestHeader(sparrowmq_wait_ms=wait_ms),
        body=encode_body(request),
        timeout_ms=timeout_ms + (wait_ms or 0),
    )
    given = decode_answer(LockBatchResponseBody, reply, address)
    asked, stood_in = frozenset(queues), given.sparrowmq_stood_in
    return Locks(
        asked.intersection(given.lock_ok_mq_set),
        None if stood_in is None else asked.intersection(stood_in),
    )


def unlock_batch(
    address: str,
    group: str,
    *,
    client_id: str,
    queues: Sequence[MessageQueue],
) -> Operation[None]:
    """Give locks back and wait for the answer; the broker keeps other members' locks.

    Raises: TransportError, BrokerError.
    """
    request = UnlockBatchRequestBody(client_id=client_id, consumer_group=group, mq_set=list(queues))
    yield from ask(
        address, RequestCode.UNLOCK_BATCH_MQ, body=encode_body(request), timeout_ms=LOCK_TIMEOUT_MS
    )
