"""The futures of queued messages with the functions that Python's library has for futures."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import FIRST_COMPLETED, as_completed, wait

import pytest

from sparrowmq import MessageQueue, SendResult, SendStatus
from sparrowmq.client.faces.task_host import TaskFutures
from sparrowmq.client.faces.thread_host import ThreadFutures
from sparrowmq.errors import UsageError

PATIENCE_S = 60
RESULT = SendResult(SendStatus.SEND_OK, "1", "2", MessageQueue("T", "b", 0), 3)


async def test_futures_end_for_all_who_wait() -> None:
    futures = ThreadFutures(lambda error: None)
    first, second, last = (futures.make() for _ in range(3))
    called: list[object] = []
    for future in (first, second):
        future.add_done_callback(called.append)
    found: list[SendResult] = []
    threads = [
        threading.Thread(target=lambda: found.append(second.result(PATIENCE_S))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    wrapped = asyncio.wrap_future(second)
    with pytest.raises(TimeoutError):
        first.result(0)

    futures.settle([first], [RESULT])
    done, waiting = wait([first, second], PATIENCE_S, FIRST_COMPLETED)
    assert (done, waiting) == ({first}, {second})
    assert not second.cancel()
    settling = threading.Timer(0, lambda: futures.settle([second, last], [RESULT, RESULT]))
    settling.start()
    assert {*as_completed([first, second, last], PATIENCE_S)} == {first, second, last}
    assert await wrapped == RESULT
    for thread in (*threads, settling):
        thread.join(PATIENCE_S)
    last.add_done_callback(called.append)

    assert found == [RESULT] * 3
    assert called == [first, second, last]


def test_error_is_noted_unless_somebody_reads_it() -> None:
    noted: list[BaseException] = []
    futures = ThreadFutures(noted.append)
    held, read, dropped = (futures.make() for _ in range(3))
    error = UsageError("no")
    futures.settle([held, read, dropped], error)

    assert read.exception() is error
    with pytest.raises(UsageError):
        read.result()
    del dropped
    assert noted == [error]
    # Its holder may never look at it.
    futures.note_unread()
    assert noted == [error, error]
    del held
    assert noted == [error, error]


async def test_error_of_an_asyncio_future_is_noted_unless_somebody_reads_it() -> None:
    noted: list[BaseException] = []
    futures = TaskFutures(noted.append)
    held, read, dropped, cancelled = (futures.make() for _ in range(4))
    cancelled.cancel()
    error = UsageError("no")
    futures.settle([held, read, dropped, cancelled], error)

    assert read.exception() is error
    del dropped
    assert noted == [error]
    futures.note_unread()
    assert noted == [error, error]
    del held, cancelled
    assert noted == [error, error]
