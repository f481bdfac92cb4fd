# Made of aio_batches.py by `make generate`; change that file.
"""The part of a producer that sends messages in batches, from the first message to `close`.

Tests: client/test_batches.py.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from threading import RLock

from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.forks import tell_in_forks
from sparrowmq.client.assembly import DRIVER_CLOSE_MS, RESTART_S
from sparrowmq.client.batcher import Batcher, Pending
from sparrowmq.client.faces.thread_host import Future, ThreadFutures, ThreadHost
from sparrowmq.client.operations import batches
from sparrowmq.client.operations.observe import begin_send
from sparrowmq.client.operations.send import check_outgoing
from sparrowmq.client.publisher import Ended, Publisher, SendsDropped
from sparrowmq.client.queue_selector import QueueChoice
from sparrowmq.errors import BufferFull, SparrowError
from sparrowmq.model import Message, SendResult

LOG = logging.getLogger("sparrowmq.client")


class Batches:
    """The messages queued for sending, and the loop that sends them.

    Args:
        publisher: the producer's state.
        driver: the producer's driver.
    """

    def __init__(self, publisher: Publisher, driver: BlockingDriver) -> None:
        self._publisher = publisher
        self._driver = driver
        self._batcher = publisher.batcher = Batcher(publisher.config, self._end)
        self._futures = ThreadFutures(self._batcher.note_unread)
        self._host = ThreadHost(driver)
        # Guards the fields below: any thread may add messages. The cyclic collector may call `drop`
        # wherever the lock is held, in the same thread.
        self._lock = RLock()
        self._waiting_bytes = 0
        # How many messages have not ended, by the number of calls of `flush` before them. The last
        # is always there.
        self._waiting_counts = {0: 0}
        self._flush_number = 0
        # Whether the loop takes messages: it may be cancelled before `close`.
        self._is_running = False
        self._is_closing = False
        tell_in_forks(self)

    def add(self, message: Message, queue: QueueChoice | None) -> Future[SendResult]:
        """Queue a message.

        Raises: UsageError or ConfigError for a wrong message; BufferFull; UsageError after `close`.
        """
        publisher, config = self._publisher, self._publisher.config
        check_outgoing(publisher, message, queue)
        ended: Ended | None = None
        if publisher.observers:
            (message,), ended = begin_send(publisher, (message,))
        size = len(message.body)
        try:
            with self._lock:
                if self._is_closing:
                    self._driver.check_usable()
                    raise batches.closed_error()
                if self._waiting_bytes + size > config.buffer_bytes_max:
                    raise BufferFull(
                        f"{self._waiting_bytes} bytes of messages wait to be sent, and "
                        f"buffer_bytes_max is {config.buffer_bytes_max}; wait for the results of "
                        "earlier messages, or for flush"
                    )
                if not self._is_running:
                    name = f"sparrowmq-batches-{config.group}"
                    self._host.start(self._serve, name=name, on_end=self._note_end)
                    self._is_running = True
                future = self._futures.make()
                self._waiting_bytes += size
                number = self._flush_number
                self._waiting_counts[number] += 1
                must_wake = self._batcher.hand_over(Pending(message, queue, future, ended, number))
            if must_wake:
                self._wake()
        except (SparrowError, RuntimeError) as error:
            # The latter if the system refuses a thread.
            if ended is not None:
                ended(None, error)
            raise
        except BaseException:
            # Ctrl-C: the message may have been handed over to a loop that rests.
            if self._is_running:
                self._wake()
            raise
        return future

    def _wake(self) -> None:
        self._host.call(self._batcher.wake.set)

    def _end(self, pendings: Sequence[Pending], outcome: Sequence[SendResult] | Exception) -> None:
        size = sum([len(pending.message.body) for pending in pendings])
        with self._lock:
            self._waiting_bytes -= size
            counts = self._waiting_counts
            if len(counts) == 1:
                counts[self._flush_number] -= len(pendings)
            else:
                for pending in pendings:
                    counts[pending.flush_number] -= 1
        self._futures.settle([pending.future for pending in pendings], outcome)
        error = outcome if isinstance(outcome, Exception) else None
        for number, pending in enumerate(pendings):
            if pending.ended is not None:
                pending.ended(None if isinstance(outcome, Exception) else outcome[number], error)

    def flush(self) -> None:
        """Wait until every message queued so far is answered."""
        if not self._host.is_started:
            return
        with self._lock:
            number = self._flush_number
            self._flush_number += 1
            self._waiting_counts[self._flush_number] = 0
        self._driver.run(batches.flush(self._batcher, partial(self._have_ended, number)))

    def _have_ended(self, number: int) -> bool:
        """Return whether the messages before a call of `flush` have ended."""
        with self._lock:
            if self._is_running and self._batcher.is_empty:
                # Ctrl-C may have kept counted messages from the batcher.
                self._waiting_bytes, self._waiting_counts = 0, {self._flush_number: 0}
                return True
            counts, last = self._waiting_counts, self._flush_number
            for each in [each for each, count in counts.items() if not count and each != last]:
                del counts[each]
            return min(counts) > number

    def close(self) -> None:
        """Send the waiting messages for as long as one send may take; fail the rest."""
        with self._lock:
            self._is_closing = True
        if not self._host.is_started:
            return
        self._host.call(self._begin_closing)
        timeout_ms = self._publisher.config.send_timeout_ms + DRIVER_CLOSE_MS
        self._host.end(timeout_ms / 1000, give_up=self._give_up)

    def become_copy(self) -> None:
        """Refuse messages in a forked process, where no loop would send them."""
        # Another thread may have held it in the parent.
        self._lock = RLock()
        self._is_closing = True
        # They wait in the parent, not here.
        self._waiting_counts = {self._flush_number: 0}

    def drop(self) -> None:
        """Send what waits: nobody holds the producer any more, and no code can close it."""
        with self._lock:
            count, self._is_closing = sum(self._waiting_counts.values()), True
        if count and self._publisher.report is not None:
            self._publisher.report(SendsDropped(count))
        # The loop may be closed already.
        with suppress(RuntimeError):
            self._host.call(self._begin_closing)

    def _begin_closing(self) -> None:
        self._batcher.is_closing = True
        self._batcher.wake.set()

    def _give_up(self) -> None:
        self._batcher.done(self._batcher.abandon(), batches.closed_error())
        self._batcher.wake.set()

    def _note_end(self) -> None:
        """Fail what waits when the loop has ended, which may be before its first step."""
        with self._lock:
            # A later message begins the loop anew.
            self._is_running = False
            left = self._batcher.abandon()
        self._batcher.done(left, batches.ended_error(self._batcher))
        # A `flush` may wait for them.
        self._host.call(self._batcher.settled.set)
        self._futures.note_unread()
        batches.report_unread(self._publisher, self._batcher, now_ms=None)

    def _serve(self) -> None:
        while not (self._batcher.is_closing and self._batcher.is_empty):
            try:
                self._driver.run(batches.serve(self._publisher, self._batcher), name="batches")
            except Exception:
                if self._batcher.is_closing:
                    return
                # The outermost loop: queued messages must not wait for ever.
                LOG.exception(
                    "sending batches of %s failed, and continues", self._publisher.config.client_id
                )
                self._host.pause(RESTART_S)
