"""Messages of one queue that go back to the broker, to be delivered again later. Pure.

A message that cannot be sent back is consumed again by this member after a wait, as in Java
(ConsumeMessageConcurrentlyService.submitConsumeRequestLater).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sparrowmq.membership.process_queue import ProcessQueue
from sparrowmq.membership.repeated_job import LOST_MS
from sparrowmq.model import MessageExt

# ConsumeMessageConcurrentlyService: a message that was not sent back is consumed again after this.
LOCAL_RETRY_MS = 5_000
# ProcessQueue.cleanExpiredMsg sends messages back with this level.
EXPIRED_DELAY_LEVEL = 3


class SendBacks:
    """The messages of one queue that are to be, or are being, sent back to the broker.

    Args:
        process_queue: where the messages are until the broker has them.
    """

    __slots__ = ("_process_queue", "_retries", "_under_way", "_waiting")

    def __init__(self, process_queue: ProcessQueue) -> None:
        self._process_queue = process_queue
        # Messages to send back, each batch with its delay level.
        self._waiting: list[tuple[tuple[MessageExt, ...], int]] = []
        # By offset, the time at which sending back began.
        self._under_way: dict[int, int] = {}
        # Retries: the due time, and the offsets of the messages that could not be sent back.
        self._retries: list[tuple[int, tuple[int, ...]]] = []

    @property
    def are_under_way(self) -> bool:
        """Whether the broker's answer for a message is awaited."""
        return bool(self._under_way)

    @property
    def are_settled(self) -> bool:
        """Whether no message waits to be sent back, for the broker's answer, or for a retry."""
        return not (self._waiting or self._under_way or self._retries)

    @property
    def retry_count(self) -> int:
        """How many messages wait to be consumed again by this member."""
        return sum(len(offsets) for _, offsets in self._retries)

    @property
    def retries_due_ms(self) -> list[int]:
        """The times at which messages are consumed again by this member."""
        return [due_ms for due_ms, _ in self._retries]

    def add(self, messages: Sequence[MessageExt], delay_level: int) -> None:
        """Send back the unfinished messages that are not being sent back already."""
        own = tuple(message for message in messages if self._is_ours(message))
        if own:
            self._waiting.append((own, delay_level))

    def add_expired(self, now_ms: int, *, timeout_ms: int) -> None:
        """Send back the messages that the listener has had longer than `timeout_ms`."""
        elsewhere = {offset for _, offsets in self._retries for offset in offsets}
        elsewhere.update(m.queue_offset for messages, _ in self._waiting for m in messages)
        expired = self._process_queue.find_expired(now_ms, timeout_ms=timeout_ms)
        own = [message for message in expired if message.queue_offset not in elsewhere]
        self.add(own, EXPIRED_DELAY_LEVEL)

    def begin(self, now_ms: int) -> list[tuple[tuple[MessageExt, ...], int]]:
        """Return the batches to send back now, with their delay levels; they count as under way."""
        waiting, self._waiting = self._waiting, []
        begun: list[tuple[tuple[MessageExt, ...], int]] = []
        for messages, level in waiting:
            # Meanwhile the listener's result may have come, which adds its messages once more.
            own = tuple(message for message in messages if self._is_ours(message))
            self._under_way.update((message.queue_offset, now_ms) for message in own)
            if own:
                begun.append((own, level))
        lost = [n for n, sent_ms in self._under_way.items() if now_ms - sent_ms > LOST_MS]
        if lost:
            self.end(done=(), failed=lost, now_ms=now_ms)
        return begun

    def end(self, *, done: Collection[int], failed: Collection[int], now_ms: int) -> None:
        """Note by offset which messages the broker has now; the others are consumed here again."""
        under_way = self._under_way
        again = tuple(
            sorted(offset for offset in failed if under_way.pop(offset, None) is not None)
        )
        for offset in done:
            under_way.pop(offset, None)
        self._process_queue.complete(done)
        if again:
            self._retries.append((now_ms + LOCAL_RETRY_MS, again))

    def retry(self, now_ms: int) -> None:
        """Let messages whose retry is due be consumed again."""
        due = [offsets for due_ms, offsets in self._retries if due_ms <= now_ms]
        if not due:
            return
        self._retries = [retry for retry in self._retries if retry[0] > now_ms]
        for offsets in due:
            self._process_queue.put_back(offsets)

    def _is_ours(self, message: MessageExt) -> bool:
        offset = message.queue_offset
        return self._process_queue.has(offset) and offset not in self._under_way
