"""A bounded pool of threads that run the user's plain functions.

Threads start as calls come, up to the bound, and then wait for more calls. The threads are daemons:
a listener that never returns delays `join` by the caller's bound, and does not delay the exit of
the interpreter. (The standard library's pool waits for its threads at exit without any bound.)

Calls beyond the number of threads wait in a queue. The queue needs no bound: each entry belongs to
one waiting task of the driver.

Waking a thread costs more than many calls. Therefore one thread is woken at a time, and a thread
that takes a call wakes the next thread if calls are left. Few threads run calls that return at
once, and all threads run calls that wait (benchmarks/client.py).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias

from sparrowmq.calling import clock

LOG = logging.getLogger("sparrowmq.calling")

# DefaultMQPushConsumer.consumeThreadMax.
POOL_SIZE = 20
# How long a closing driver waits for its connections, and for the functions in `Call`.
CLOSE_TIMEOUT_MS = 5_000

# Called with a call's result and error on the thread that ran the call; must not raise.
OnReturned: TypeAlias = Callable[[Any, BaseException | None], None]

_Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], OnReturned]


class CallPool:
    """Runs functions in threads.

    Args:
        size: the most threads.
        name: the prefix of the threads' names.
    """

    def __init__(self, *, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._calls: deque[_Call] = deque()
        # Guards all fields below; threads sleep in `_wakes.get`.
        self._lock = threading.Lock()
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._sleeping_count = 0
        # Threads that are awake or being woken and have not yet looked for a call.
        self._looking_count = 0
        self._is_closed = False
        self._on_ended: Callable[[], None] | None = None
        self._serving_count = 0
        self._threads: list[threading.Thread] = []

    def submit(
        self, function: Callable[..., Any], args: tuple[Any, ...], on_returned: OnReturned
    ) -> None:
        """Let a thread call the function and then, on the same thread, `on_returned`.

        If the system refuses the first thread, `on_returned` is called here with the error.
        """
        with self._lock:
            self._calls.append((function, args, on_returned))
            refused = self._wake_one()
            if refused is None or self._threads:
                # After a refusal the call waits for a thread that there is.
                return
            self._calls.pop()
        on_returned(None, refused)

    def _wake_one(self) -> RuntimeError | None:
        """Wake one more thread, unless a woken one has yet to look; the lock is held.

        Returns: why the system refuses a thread that is needed.
        """
        if self._looking_count:
            return None
        if self._sleeping_count:
            self._looking_count = 1
            self._sleeping_count -= 1
            self._wakes.put(None)
        elif len(self._threads) < self._size:
            thread = threading.Thread(
                target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                return error
            self._looking_count = 1
            self._threads.append(thread)
            self._serving_count += 1
        return None

    def grow(self, count: int) -> None:
        """Allow `count` more threads."""
        with self._lock:
            self._size += count

    def close(self, *, on_ended: Callable[[], None] | None = None) -> None:
        """Let every thread end after its current call; waiting calls are never made.

        Args:
            on_ended: called once when the last thread ends, on that thread; called at once if there
                is not a thread.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._on_ended = on_ended
            self._calls.clear()
            self._looking_count += self._sleeping_count
            for _ in range(self._sleeping_count):
                self._wakes.put(None)
            if self._serving_count:
                return
        if on_ended is not None:
            on_ended()

    def join(self, *, timeout_ms: int) -> list[str]:
        """Wait for the threads to end after `close`; a call may do so too.

        Returns: the names of those that have not ended when the time is up, the caller's left out.
        """
        deadline_ms = clock.monotonic_ms() + timeout_ms
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join(max(0, deadline_ms - clock.monotonic_ms()) / 1000)
        return [thread.name for thread in others if thread.is_alive()]

    def _serve(self) -> None:
        self._serve_calls()
        with self._lock:
            self._serving_count -= 1
            on_ended = self._on_ended if not self._serving_count else None
        if on_ended is not None:
            on_ended()

    def _serve_calls(self) -> None:
        while True:
            with self._lock:
                self._looking_count -= 1
                if self._is_closed:
                    return
                call = self._calls.popleft() if self._calls else None
                if call is None:
                    self._sleeping_count += 1
                elif self._calls:
                    self._wake_one()
            if call is None:
                self._wakes.get()
            else:
                self._run(*call)
            # The result may refer to much memory; do not keep it until the next call comes.
            del call

    def _run(
        self, function: Callable[..., Any], args: tuple[Any, ...], on_returned: OnReturned
    ) -> None:
        result = error = None
        try:
            result = function(*args)
        except BaseException as raised:
            error = raised
        # Before the result is handed over, since the result may lead to the next call.
        with self._lock:
            self._looking_count += 1
        try:
            on_returned(result, error)
        finally:
            del error  # Its traceback refers to this frame.


def log_left(names: list[str]) -> None:
    """Log the threads that did not end in time, if there are any."""
    if names:
        LOG.warning("threads left in their calls: %s", ", ".join(names))
