"""Replies that wait until the confirmed change is written, flushed, saved or registered.

Replies to sends wait for a position of the commit log: until the log is written up to it, at the
end of the turn, or until the log is flushed up to it. These replies wait in queues, in the order of
their positions. Replies to changes of topics and groups wait for rounds of journalling and
registration, and those to deletions for a write of the offsets. They are few, so they wait in a
list. A reply that waits for a round and a position
waits in the list first, and may then have the position of an earlier turn.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from sparrowmq.broker.put_latency import PutLatency
from sparrowmq.broker.rounds import Rounds
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.serving.connections import (
    Connection,
    Output,
    PauseReading,
    Reply,
    ResumeReading,
    Written,
)

# Unanswered sends of one connection; above it the broker stops reading from the connection.
IN_FLIGHT_MAX = 256
# MessageStoreConfig.syncFlushTimeout.
FLUSH_TIMEOUT_MS = 5_000


class _Awaiting(msgspec.Struct, frozen=True):
    position: int
    since_ms: int
    reply: Reply | Written


class _AwaitingRounds(NamedTuple):
    journal_round: int
    registration_round: int
    offsets_round: int
    waits_for_flush: bool
    position: int
    since_ms: int
    reply: Reply | Written


class PendingReplies:
    """Holds replies back until they may be sent.

    Args:
        journal: the journalling rounds, which write changes of the configuration.
        registrations: the rounds of registration at the name servers.
        offset_saves: the writes of the committed offsets.

    Attributes:
        latency: how long the answers to sends were held back.
    """

    def __init__(self, journal: Rounds, registrations: Rounds, offset_saves: Rounds) -> None:
        self._journal = journal
        self._registrations = registrations
        self._offset_saves = offset_saves
        self.latency = PutLatency()
        self._written_position = self._flushed_position = 0
        self._for_write: deque[_Awaiting] = deque()
        self._for_flush: deque[_Awaiting] = deque()
        self._for_rounds: list[_AwaitingRounds] = []
        self._in_flight: dict[Connection, int] = {}
        self._paused: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._for_write) + len(self._for_flush) + len(self._for_rounds)

    def add(
        self, reply: Reply | Written, *, position: int, waits_for_flush: bool, now_ms: int
    ) -> Sequence[Output]:
        """Hold a reply until the commit log is written, or flushed, up to `position`."""
        if not waits_for_flush:
            if position <= self._written_position:
                return (reply,)
            _enqueue(self._for_write, _Awaiting(position, now_ms, reply))
            return ()
        if position <= self._flushed_position:
            return (reply,)
        _enqueue(self._for_flush, _Awaiting(position, now_ms, reply))
        connection = reply.connection
        count = self._in_flight.get(connection, 0) + 1
        self._in_flight[connection] = count
        if count == IN_FLIGHT_MAX and connection not in self._paused:
            self._paused.add(connection)
            return (PauseReading(connection),)
        return ()

    def add_for_rounds(
        self,
        reply: Reply | Written,
        *,
        journal_round: int = 0,
        registration_round: int = 0,
        offsets_round: int = 0,
        position: int = 0,
        waits_for_flush: bool = False,
        now_ms: int,
    ) -> list[Output]:
        """Hold a reply until all rounds have ended, and then as `add` does."""
        entry = _AwaitingRounds(
            journal_round,
            registration_round,
            offsets_round,
            waits_for_flush,
            position,
            now_ms,
            reply,
        )
        if self._waits_for_rounds(entry):
            self._for_rounds.append(entry)
            return []
        return [*self._add_entry(entry)]

    def note_written(self, position: int, *, now_ms: int) -> list[Output]:
        """Release the replies that waited for the log to be written up to `position`."""
        self._written_position = position
        waiting = self._for_write
        if not waiting or waiting[0].position > position:
            return []
        since_ms = waiting[0].since_ms
        released: list[Output] = []
        if waiting[-1].position <= position:
            released = [entry.reply for entry in waiting]
            waiting.clear()
        else:
            while waiting and waiting[0].position <= position:
                released.append(waiting.popleft().reply)
        self.latency.note(len(released), now_ms - since_ms, now_ms=now_ms)
        return released

    def fail_unwritten(self, position: int, reason: str, *, now_ms: int) -> list[Output]:
        """Answer SERVICE_NOT_AVAILABLE for lost messages: all that wait beyond `position`."""
        code = ResponseCode.SERVICE_NOT_AVAILABLE
        released = self.note_written(position, now_ms=now_ms)
        for entry in self._for_write:
            released.append(_failed(entry.reply, code, reason))
        self._for_write.clear()
        while self._for_flush and self._for_flush[-1].position > position:
            self._release(_failed(self._for_flush.pop().reply, code, reason), released)
        for waiting in self._for_rounds:
            if waiting.position > position:
                released.append(_failed(waiting.reply, code, reason))
        self._for_rounds = [entry for entry in self._for_rounds if entry.position <= position]
        return released

    def note_flushed(self, position: int, *, now_ms: int) -> list[Output]:
        """Release the replies that waited for the flush up to `position`."""
        self._flushed_position = position
        released: list[Output] = []
        waiting = self._for_flush
        if not waiting or waiting[0].position > position:
            return released
        count, since_ms = len(waiting), waiting[0].since_ms
        while waiting and waiting[0].position <= position:
            self._release(waiting.popleft().reply, released)
        self.latency.note(count - len(waiting), now_ms - since_ms, now_ms=now_ms)
        return released

    def fail_flush(self) -> list[Output]:
        """Answer FLUSH_DISK_TIMEOUT to every send that waits for a flush."""
        released: list[Output] = []
        waiting, self._for_flush = self._for_flush, deque()
        for entry in waiting:
            self._release(_failed(entry.reply, ResponseCode.FLUSH_DISK_TIMEOUT), released)
        return released

    def expire_flush(self, now_ms: int) -> list[Output]:
        """Answer FLUSH_DISK_TIMEOUT to sends that have waited too long; messages stay stored."""
        released: list[Output] = []
        waiting = self._for_flush
        while waiting and (waited_ms := now_ms - waiting[0].since_ms) > FLUSH_TIMEOUT_MS:
            reply = _failed(waiting.popleft().reply, ResponseCode.FLUSH_DISK_TIMEOUT)
            self._release(reply, released)
            self.latency.note(1, waited_ms, now_ms=now_ms)
        return released

    def note_rounds(self) -> list[Output]:
        """Release the replies whose rounds have ended."""
        released: list[Output] = []
        kept: list[_AwaitingRounds] = []
        for entry in self._for_rounds:
            if self._waits_for_rounds(entry):
                kept.append(entry)
            else:
                released += self._add_entry(entry)
        self._for_rounds = kept
        return released

    def _waits_for_rounds(self, entry: _AwaitingRounds) -> bool:
        return (
            entry.journal_round > self._journal.finished
            or entry.registration_round > self._registrations.finished
            or entry.offsets_round > self._offset_saves.finished
        )

    def _add_entry(self, entry: _AwaitingRounds) -> Sequence[Output]:
        return self.add(
            entry.reply,
            position=entry.position,
            waits_for_flush=entry.waits_for_flush,
            now_ms=entry.since_ms,
        )

    def fail_journal(self, journal_round: int, reason: str) -> list[Output]:
        """Answer an error to the requests that waited for a failed journalling round.

        A record that was stored stays: its answer is that of a failed flush, FLUSH_DISK_TIMEOUT.
        The others' is SYSTEM_ERROR.
        """
        released: list[Output] = []
        for entry in self._take_if(lambda entry: 0 < entry.journal_round <= journal_round):
            has_record = bool(entry.position)
            code = ResponseCode.FLUSH_DISK_TIMEOUT if has_record else ResponseCode.SYSTEM_ERROR
            remark = f"the configuration could not be written: {reason}"
            released.append(_failed(entry.reply, code, remark))
        return released

    def fail_offsets(self, reason: str) -> list[Output]:
        """Answer SYSTEM_ERROR to the requests that wait for the running write of the offsets."""
        rounds, remark = self._offset_saves, f"the offsets could not be written: {reason}"
        failed = self._take_if(lambda entry: rounds.finished < entry.offsets_round <= rounds.begun)
        return [_failed(entry.reply, ResponseCode.SYSTEM_ERROR, remark) for entry in failed]

    def _take_if(self, has_failed: Callable[[_AwaitingRounds], bool]) -> list[_AwaitingRounds]:
        """Remove and return the entries that waited for a failed round."""
        taken: list[_AwaitingRounds] = []
        kept: list[_AwaitingRounds] = []
        for entry in self._for_rounds:
            (taken if has_failed(entry) else kept).append(entry)
        self._for_rounds = kept
        return taken

    def forget(self, connection: Connection) -> None:
        """Forget the counts of a closed connection; its replies are dropped when released."""
        self._in_flight.pop(connection, None)
        self._paused.discard(connection)

    def _release(self, reply: Reply | Written, released: list[Output]) -> None:
        released.append(reply)
        connection = reply.connection
        count = self._in_flight.get(connection, 0) - 1
        if count > 0:
            self._in_flight[connection] = count
        else:
            self._in_flight.pop(connection, None)
        if count <= IN_FLIGHT_MAX // 2 and connection in self._paused:
            self._paused.discard(connection)
            released.append(ResumeReading(connection))


def _enqueue(waiting: deque[_Awaiting], entry: _Awaiting) -> None:
    """Add a reply in the order of positions: the end of the queue decides what is lost."""
    if waiting and waiting[-1].position > entry.position:
        insort(waiting, entry, key=lambda each: each.position)
    else:
        waiting.append(entry)


def _failed(reply: Reply | Written, code: ResponseCode, remark: str | None = None) -> Reply:
    """Return a reply with the code of an error; one that is encoded already is decoded."""
    command = reply.command
    command.code = code
    # The messages of a pop, which the next one gets.
    command.body = None
    if remark is not None:
        command.remark = remark
    return Reply(reply.connection, command)
