"""A client's notices as lines of the log; those that repeat are spaced and counted."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from datetime import timedelta
from enum import Enum

from sparrowmq.calling.bounded_log import BoundedLog
from sparrowmq.client.listener_calls import ListenersStuck
from sparrowmq.client.publisher import (
    DelayRounded,
    ObserverFailed,
    ProducerNotice,
    SendsDropped,
    SendsUnread,
)
from sparrowmq.client.subscriber import (
    AllocationFailed,
    BegunAtEnd,
    ConsumerFailed,
    DeadLetterChosen,
    FirstMessage,
    GivenUp,
    JoinedGroup,
    LeftGroup,
    ListenerFailed,
    MessagePassedOver,
    NoPlanRegister,
    Notice,
    RebalanceListenerFailed,
    RequestFailed,
    Subscriber,
)
from sparrowmq.client.transaction_outcomes import CheckFailed, EndFailed
from sparrowmq.coordination.member_marker import MARKED_LEASE_MS
from sparrowmq.errors import SparrowError, TransportError, UnreadableMessage, drop_own_frames
from sparrowmq.membership.actions import (
    AssignmentChanged,
    CommitLost,
    DrainTimedOut,
    DuplicateClientId,
    NotListed,
    OffsetCorrected,
    OffsetReset,
    QueueLost,
    StoodStill,
)
from sparrowmq.model import ConsumeType, MessageExt, MessageQueue, UnreadablePolicy
from sparrowmq.model.names import dlq_topic

LOG = logging.getLogger("sparrowmq.client")
# All clients of the process share the lines about what befalls them together: a broker or a name
# server that does not answer, and a process that stands still.
SHARED = BoundedLog(LOG)

# The most lines of one kind in a period that tell a consumer's course. Warnings have one.
PROGRESS_LINES_MAX = 100
# The most queues whose standstill is remembered.
STANDSTILLS_MAX = 1_000
# The most messages that one line names; and the most queues or client ids.
MESSAGES_SHOWN_MAX = 10
NAMES_SHOWN_MAX = 64


def warn_no_subscription(subscriber: Subscriber) -> None:
    """Log a warning if a push consumer starts without a subscription."""
    config = subscriber.config
    if config.consume_type is ConsumeType.CONSUME_PASSIVELY and not subscriber.user_topics:
        LOG.warning(
            "consumer group %s: consumer %s starts without a subscription, and gets no message "
            "until subscribe is called",
            config.group,
            config.client_id,
            extra={"event": "no_subscription", "group": config.group},
        )


def warn_not_closed(subscriber: Subscriber) -> None:
    """Log a warning if a running consumer was dropped, so that no code can close it."""
    LOG.warning(
        "consumer group %s: consumer %s was dropped without close. It consumes until its process "
        "ends, and then its group waits for it; call close, or use the consumer in a with block",
        subscriber.config.group,
        subscriber.config.client_id,
        extra={"event": "not_closed", "group": subscriber.config.group},
    )


def warn_not_started(subscriber: Subscriber) -> None:
    """Log a warning if a consumer that subscribed topics ends without a start."""
    topics = subscriber.user_topics
    if topics:
        LOG.warning(
            "consumer group %s: consumer %s subscribed %s but was never started, and got no "
            "message; call start after subscribe",
            subscriber.config.group,
            subscriber.config.client_id,
            _listed(topics, len(topics)),
            extra={"event": "not_started", "group": subscriber.config.group},
        )


class NoticeLog:
    """Logs the notices of one client, each with fields for logs in JSON.

    Args:
        group: the client's group, with which every line begins.
    """

    def __init__(self, group: str, kind: str = "consumer group") -> None:
        self._group = group
        self._kind = kind
        # The fields of the notice that is being logged.
        self._fields: dict[str, object] = {}
        self._warnings = BoundedLog(LOG)
        self._progress = BoundedLog(LOG, lines_max=PROGRESS_LINES_MAX)
        # By queue: the last logged reason why the queue stands still.
        self._standstills: dict[MessageQueue, str] = {}

    def report(self, notice: Notice | CheckFailed | EndFailed | ProducerNotice) -> None:
        """Log a notice, unless an equal one was logged a moment ago."""
        self._fields = fields_of(notice, self._group)
        if isinstance(notice, AssignmentChanged | JoinedGroup | FirstMessage | LeftGroup):
            self._log_progress(notice)
        elif isinstance(notice, ConsumerFailed):
            self._log_end(notice)
        elif isinstance(notice, BegunAtEnd):
            text = (
                "%s has no committed offset, so consumption begins at its end, offset %d, and "
                "skips the messages stored before; CONSUME_FROM_FIRST_OFFSET begins with those"
            )
            self._warn((text,), text, _names((notice.queue,)), notice.offset)
        elif isinstance(notice, DuplicateClientId):
            self._warn_duplicate(notice)
        elif isinstance(notice, ListenersStuck):
            self._warn_stuck(notice)
        elif isinstance(notice, GivenUp):
            self._warn_given_up(notice)
        elif isinstance(notice, DeadLetterChosen):
            queue, message, reason, is_broadcasting = notice
            text = "the listener makes message %s of %s a dead letter: %s"
            if is_broadcasting:
                text = (
                    "the listener gives message %s of %s up (BROADCASTING has no dead letters): %s"
                )
            self._warn((text, reason), text, message.msg_id, queue, reason)
        elif isinstance(notice, NotListed):
            text = "the broker does not list this client id, %s, among %s; registering again"
            listed = _listed(notice.cid_all, len(notice.cid_all))
            self._warn((text,), text, notice.client_id, listed)
        elif isinstance(
            notice, OffsetCorrected | OffsetReset | DrainTimedOut | QueueLost | CommitLost
        ):
            self._warn_queue(notice)
        elif isinstance(notice, StoodStill):
            text = (
                "this consumer stood still for %d ms, longer than the %d ms for which it may rely "
                "on its locks, with %s of the listener under way: it asks its brokers before it "
                "goes on. Either its process was stopped or got no CPU, or a call kept the "
                "interpreter or the event loop; in coroutines, await, or use asyncio.to_thread"
            )
            calls = _count(notice.call_count, "call")
            self._warn((text,), text, notice.still_ms, MARKED_LEASE_MS, calls, log=SHARED)
        elif isinstance(notice, NoPlanRegister):
            text = (
                "broker %s keeps no plans, as only SparrowMQ's brokers do: AVG_BY_LOAD divides "
                "the queues by their number, like MINIMAL_MOVE"
            )
            self._warn((text,), text, notice.broker_name)
        elif isinstance(notice, MessagePassedOver):
            self._warn_passed_over(notice)
        elif isinstance(notice, ObserverFailed):
            text = "an observer failed at %s, which goes on without it: %r"
            error = notice.error
            kind = (text, notice.what, type(error).__name__)
            self._warn(kind, text, *notice, error=_users_part(error))
        elif isinstance(
            notice, CheckFailed | EndFailed | DelayRounded | SendsUnread | SendsDropped
        ):
            self._warn_producer(notice)
        else:
            self._warn_failure(notice)

    def _warn_queue(
        self, notice: OffsetCorrected | OffsetReset | DrainTimedOut | QueueLost | CommitLost
    ) -> None:
        words: tuple[object, ...] = notice
        if isinstance(notice, OffsetReset):
            text = "%s was reset at its broker: this consumer was at offset %d, and goes on at %d"
        elif isinstance(notice, OffsetCorrected):
            text = "%s has no offset %d; continuing at %d, and messages from there come again"
            if notice.wanted_offset < notice.corrected_offset:
                text = (
                    "%s has no offset %d any more, because its messages expired; continuing at %d"
                )
        elif isinstance(notice, DrainTimedOut):
            text = (
                "%s was given up while a listener still has %s, to be delivered again at the "
                "queue's next owner"
            )
            words = (notice.queue, _count(notice.in_flight_count, "message"))
        elif isinstance(notice, QueueLost):
            text = (
                "the lock of %s was lost%s; the messages that listeners have now come again, at "
                "the queue's next owner"
            )
            still = f", as this consumer stood still for {notice.still_ms} ms"
            words = (notice.queue, still if notice.still_ms else "")
        else:
            text = (
                "%s was given up, but offset %d was not committed; messages come again, at the "
                "queue's next owner"
            )
        self._warn((text, str(notice.queue)), text, *words)

    def _warn_producer(
        self, notice: CheckFailed | EndFailed | DelayRounded | SendsUnread | SendsDropped
    ) -> None:
        if isinstance(notice, CheckFailed):
            text = "no outcome for half message %s of %s; its broker asks again: %r"
            kind = (text, type(notice.error).__name__)
            message, error = notice
            self._warn(kind, text, message.msg_id, message.topic, error, error=error)
        elif isinstance(notice, EndFailed):
            text = "the %s of half message %s is not confirmed; its broker asks for the outcome: %s"
            kind = (text, type(notice.error).__name__)
            self._warn(kind, text, notice.outcome.name, notice.msg_id, notice.error)
        elif isinstance(notice, DelayRounded):
            text = (
                "messages to %s with a delay of %s are delivered after %s, the next delay "
                "level: the broker at %s, unlike RocketMQ 5, has only delay levels"
            )
            self._warn((text, notice.topic, str(notice.level)), text, *notice)
        elif isinstance(notice, SendsUnread):
            text = (
                "%s of send_nowait not stored, and nobody read the result of its future; the last "
                "error is: %s"
            )
            self._warn((text,), text, _count(notice.message_count, "message"), notice.error)
        else:
            text = (
                "%s of send_nowait waited when the producer ended, and may be lost; close the "
                "producer, or use it in a with block"
            )
            self._warn((text,), text, _count(notice.message_count, "message"))

    def _log_end(self, notice: ConsumerFailed) -> None:
        # Not at the top: a synchronous client needs nothing of asyncio, whose import takes 20 ms.
        from asyncio import CancelledError

        if isinstance(notice.error, CancelledError):
            LOG.error(
                "consumer group %s: the task of consumer %s was cancelled, as all tasks are when "
                "asyncio.run ends, and consumes nothing more; close a consumer before its event "
                "loop ends, or use it in a with block",
                self._group,
                notice.client_id,
                extra=self._fields,
            )
            return
        LOG.error(
            "consumer group %s: consumer %s has failed and consumes nothing more: %r; close it "
            "and start a new one",
            self._group,
            notice.client_id,
            notice.error,
            exc_info=notice.error,
            extra=self._fields,
        )

    def _log_progress(
        self, notice: AssignmentChanged | JoinedGroup | FirstMessage | LeftGroup
    ) -> None:
        if isinstance(notice, JoinedGroup):
            topics = _listed(notice.topics, len(notice.topics)) or "no topic"
            self._info("%s joined, subscribed to %s", notice.client_id, topics)
        elif isinstance(notice, FirstMessage):
            text = "the first message has arrived: %s of %s at offset %d"
            message = notice.message
            self._info(text, message.msg_id, _names((notice.queue,)), message.queue_offset)
        elif isinstance(notice, LeftGroup):
            text = "%s left, after %d messages that succeeded and %d that failed"
            self._info(text, *notice)
        else:
            self._info(
                "%d queues: gained %s, gave up %s",
                len(notice.assigned),
                _names(notice.gained),
                _names(notice.revoked),
            )

    def _warn_duplicate(self, notice: DuplicateClientId) -> None:
        text = (
            "client id %s is listed %d times by the broker, at %s (one of them is this client). "
            "Members that share an id consume the same queues, and nobody consumes the other "
            "queues. Give each member its own instance_name (the default is unique). All ids: %s"
        )
        self._warn(
            (text, str(notice.times_listed)),
            text,
            notice.client_id,
            notice.times_listed,
            ", ".join(notice.addresses) or "addresses it does not show",
            _listed(notice.cid_all, len(notice.cid_all)),
        )

    def _warn_stuck(self, notice: ListenersStuck) -> None:
        left_out = len(notice.messages) - MESSAGES_SHOWN_MAX
        LOG.warning(
            "consumer group %s: all %d calls of the listener that may run at once have run for "
            "%.0f to %.0f s without returning, so this member consumes nothing more. They work on "
            "%s%s (topic/broker/queue/offset). Find what they wait for (py-spy dump --pid %d), and "
            "add a time-out there; restart the process to continue",
            self._group,
            notice.call_count,
            notice.shortest_ms / 1000,
            notice.longest_ms / 1000,
            ", ".join(notice.messages[:MESSAGES_SHOWN_MAX]),
            f" and {left_out} more" if left_out > 0 else "",
            os.getpid(),
            extra=self._fields,
        )

    def _warn_passed_over(self, notice: MessagePassedOver) -> None:
        queue, message, reason, policy = notice
        is_kept = policy is UnreadablePolicy.DEAD_LETTER
        text = "message %s at offset %d of %s/%s/%d cannot be read and %s: %s"
        self._warn(
            (text, str(queue), reason),
            text,
            message.msg_id,
            message.queue_offset,
            *queue,
            "went to the dead letters" if is_kept else "was skipped",
            reason,
        )

    def _log_standstill(self, queue: MessageQueue, error: UnreadableMessage) -> None:
        """Log one line for each message at which a queue stops, not one for each attempt."""
        words = " ".join(str(error).split())
        if self._standstills.get(queue) != words:
            if len(self._standstills) >= STANDSTILLS_MAX:
                self._standstills.clear()
            self._standstills[queue] = words
            text = "consumer group %s: a queue stands still: %s"
            kind = (text, str(queue))
            self._progress.log(logging.ERROR, kind, text, self._group, words, fields=self._fields)

    def _warn_failure(
        self, notice: ListenerFailed | RebalanceListenerFailed | RequestFailed | AllocationFailed
    ) -> None:
        error = notice.error
        if isinstance(notice, ListenerFailed):
            text = "the listener failed with %s of %s from offset %d on, %s: %r"
            kind = (text, str(notice.queue), type(error).__name__, str(notice.ended_count > 0))
            messages = _count(notice.message_count, "message")
            fate = self._fate_of(notice)
            place = (notice.queue, notice.first_offset)
            self._warn(kind, text, messages, *place, fate, error, error=_users_part(error))
        elif isinstance(notice, RebalanceListenerFailed):
            text = "on_assign, on_revoke or on_lost failed: %r"
            self._warn((text, repr(error)), text, error, error=_users_part(error))
        elif isinstance(notice, RequestFailed):
            self._warn_request(notice)
        else:
            text = "strategy %s failed for topic %s, so nothing changes: %r"
            self._warn(
                (text, notice.topic), text, notice.strategy, notice.topic, error, error=error
            )

    def _fate_of(self, notice: ListenerFailed) -> str:
        again_count = notice.message_count - notice.ended_count
        again = "to be delivered again"
        end = "not to be delivered again (BROADCASTING has no retries)"
        if not notice.is_broadcasting:
            end = f"to be kept as dead letters in {dlq_topic(self._group)}"
        if not notice.ended_count:
            return again
        return f"{notice.ended_count} {end} and {again_count} {again}" if again_count else end

    def _warn_given_up(self, notice: GivenUp) -> None:
        messages = notice.messages
        shown = [f"{message.msg_id} of {message.topic}" for message in messages]
        left_out = len(shown) - MESSAGES_SHOWN_MAX
        is_one = len(messages) == 1
        what = "is now a dead letter" if is_one else "are now dead letters"
        where = f"{what} in {dlq_topic(self._group)}, which nobody consumes,"
        if notice.is_broadcasting:
            where = f"{'is' if is_one else 'are'} given up (BROADCASTING has no retries)"
        text = "%s of %s %s after %s: %s%s; find out why the listener fails, and send the %s again"
        self._warn(
            (text, str(notice.queue)),
            text,
            _count(len(messages), "message"),
            notice.queue,
            where,
            _count(max(message.reconsume_times for message in messages) + 1, "delivery"),
            ", ".join(shown[:MESSAGES_SHOWN_MAX]),
            f" and {left_out} more" if left_out > 0 else "",
            "message" if is_one else "messages",
        )

    def _warn_request(self, notice: RequestFailed) -> None:
        error, queue = notice.error, notice.queue
        kind = type(error).__name__
        words = " ".join(str(error).split())
        if queue is not None and isinstance(error, UnreadableMessage):
            self._log_standstill(queue, error)
            return
        if isinstance(error, TransportError):
            # All queues of a broker fail together.
            text = "no answer to %s from %s; it is tried again: %s"
            place = (notice.what, error.address)
            self._warn((text, *place, kind), text, *place, words, log=SHARED)
            return
        where = "the group" if queue is None else str(queue)
        text = "%s of %s failed and is tried again: %s"
        self._warn((text, notice.what, where, kind), text, notice.what, where, words)

    def _info(self, text: str, *args: object) -> None:
        line = "%s %s: " + text
        args = (self._kind, self._group, *args)
        self._progress.log(logging.INFO, text, line, *args, fields=self._fields)

    def _warn(
        self,
        kind: tuple[str, ...],
        text: str,
        *args: object,
        error: BaseException | None = None,
        log: BoundedLog | None = None,
    ) -> None:
        line = "%s %s: " + text
        args = (self._kind, self._group, *args)
        if log is not None:
            kind = (self._kind, self._group, *kind)
        log = log or self._warnings
        log.log(logging.WARNING, kind, line, *args, error=error, fields=self._fields)


def _users_part(error: BaseException) -> BaseException | None:
    """Return an error of the user's code with that code's frames alone; None without any.

    An error that is not one of SparrowMQ's, but has no other frames, is a mistake of ours.
    """
    whole = error.__traceback__
    drop_own_frames(error)
    if error.__traceback__ is not None:
        return error
    return None if isinstance(error, SparrowError) else error.with_traceback(whole)


def fields_of(
    notice: Notice | CheckFailed | EndFailed | ProducerNotice, group: str
) -> dict[str, object]:
    """Return a notice as fields of a log line: event, group, and the notice's own fields."""
    event = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(notice).__name__)
    fields: dict[str, object] = {"event": event.removeprefix("_"), "group": group}
    for name, value in notice._asdict().items():
        if isinstance(value, MessageQueue):
            fields |= {"topic": value.topic, "broker": value.broker_name, "queue": value.queue_id}
        elif isinstance(value, MessageExt):
            fields["msg_id"] = value.msg_id
        elif isinstance(value, BaseException):
            fields["error"] = type(value).__name__
        elif isinstance(value, Enum):
            fields[name] = value.name
        elif isinstance(value, str | int):
            fields[name] = value
        elif isinstance(value, timedelta):
            fields[f"{name}_ms"] = round(value.total_seconds() * 1000)
        elif isinstance(value, tuple):
            shown = value[:NAMES_SHOWN_MAX]
            fields[name] = [x.msg_id if isinstance(x, MessageExt) else str(x) for x in shown]
    return fields


def _count(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun.removesuffix('y')}ies" if noun.endswith("y") else f"{number} {noun}s"


def _names(queues: tuple[MessageQueue, ...]) -> str:
    names = [f"{q.topic}/{q.broker_name}/{q.queue_id}" for q in queues[:NAMES_SHOWN_MAX]]
    return _listed(names, len(queues)) or "none"


def _listed(names: Sequence[str], count: int) -> str:
    """Return the first names as a text, with the number of the others."""
    shown = names[:NAMES_SHOWN_MAX]
    return ", ".join(shown) + (f" and {count - len(shown)} more" if count > len(shown) else "")
