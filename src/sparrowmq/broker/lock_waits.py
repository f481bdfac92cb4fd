"""Refused requests for queue locks that wait at the broker for the lock. Pure.

In a handover the new owner asks for the lock before the old owner has given it back. A client that
asks again and again costs requests, and takes the lock late. A SparrowMQ member may let its request
wait instead (`LockBatchRequestHeader`). The request is served again when the queue is unlocked,
when the holder is gone or its lease ends, or at its deadline, as if the client asked again then.
Requests of all other clients are answered at once. Tests: test_clients.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import LockBatchRequestBody
from sparrowmq.serving.connections import Connection
from sparrowmq.serving.requests import Request

# The longest wait, and the most requests that wait; further ones are answered at once.
LOCK_WAIT_MS_MAX = 1_000
LOCK_WAITS_MAX = 4_096


@dataclass(frozen=True, slots=True, eq=False)
class LockWait:
    """A request for the lock of one queue that waits.

    Args:
        body: the decoded request; it names one queue.
        deadline_ms: when the request is answered in any case.
        is_ours: whether a SparrowMQ member sent it, which knows what a stand-in is.
    """

    request: Request
    body: LockBatchRequestBody
    deadline_ms: int
    is_ours: bool

    @property
    def queue(self) -> MessageQueue:
        """The queue."""
        return self.body.mq_set[0]


@dataclass(slots=True)
class LockWaits:
    """The waiting requests, by group and queue, in the order in which they came."""

    _waits: dict[tuple[str, MessageQueue], list[LockWait]] = field(default_factory=dict)
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    def add(self, wait: LockWait) -> bool:
        """Let a request wait; return False if too many wait."""
        if self._count >= LOCK_WAITS_MAX:
            return False
        self._waits.setdefault((wait.body.consumer_group, wait.queue), []).append(wait)
        self._count += 1
        return True

    def take(self, group: str, queues: Iterable[MessageQueue]) -> list[LockWait]:
        """Return and forget the requests that wait for the queues."""
        taken: list[LockWait] = []
        for queue in queues:
            taken += self._waits.pop((group, queue), ())
        self._count -= len(taken)
        return taken

    def take_due(
        self, now_ms: int, *, is_held: Callable[[str, MessageQueue], bool]
    ) -> list[LockWait]:
        """Return and forget the requests whose deadline has come or whose lock is free."""
        return self._take_if(
            lambda wait: (
                now_ms >= wait.deadline_ms or not is_held(wait.body.consumer_group, wait.queue)
            )
        )

    def discard(self, connection: Connection) -> None:
        """Forget the requests of a closed connection."""
        self._take_if(lambda wait: wait.request.connection is connection)

    def _take_if(self, is_wanted: Callable[[LockWait], bool]) -> list[LockWait]:
        taken: list[LockWait] = []
        for key, waits in list(self._waits.items()):
            kept: list[LockWait] = []
            for wait in waits:
                (taken if is_wanted(wait) else kept).append(wait)
            if kept:
                self._waits[key] = kept
            else:
                del self._waits[key]
        self._count -= len(taken)
        return taken
