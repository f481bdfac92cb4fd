"""The pool of threads."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import pytest

from sparrowmq.calling.call_pool import CallPool

PATIENCE_S = 60


def make_pool(size: int) -> tuple[CallPool, SimpleQueue[Any]]:
    return CallPool(size=size, name="test"), SimpleQueue()


def note(returned: SimpleQueue[Any]) -> Any:
    return lambda result, error: returned.put((result, error))


def end(pool: CallPool) -> None:
    pool.close()
    assert pool.join(timeout_ms=PATIENCE_S * 1000) == []


def test_free_thread_is_used_again(no_leaks: None) -> None:
    pool, returned = make_pool(5)

    idents = set()
    for _ in range(10):
        pool.submit(threading.get_ident, (), note(returned))
        idents.add(returned.get(timeout=PATIENCE_S)[0])

    assert len(idents) == 1
    end(pool)


def test_threads_are_started_up_to_the_bound_and_no_further(no_leaks: None) -> None:
    pool, returned = make_pool(3)
    begun: SimpleQueue[str] = SimpleQueue()
    gate = threading.Event()

    def call() -> bool:
        begun.put(threading.current_thread().name)
        return gate.wait(PATIENCE_S)

    for _ in range(10):
        pool.submit(call, (), note(returned))
    names = {begun.get(timeout=PATIENCE_S) for _ in range(3)}
    running = {t.name for t in threading.enumerate() if t.name.startswith("test-")}
    gate.set()
    results = [returned.get(timeout=PATIENCE_S) for _ in range(10)]

    assert {"test-0", "test-1", "test-2"} == names == running
    assert results == [(True, None)] * 10
    end(pool)


def test_call_that_comes_while_all_threads_sleep_or_wait_is_run(no_leaks: None) -> None:
    pool, returned = make_pool(2)
    gate = threading.Event()

    pool.submit(int, ("1",), note(returned))
    assert returned.get(timeout=PATIENCE_S) == (1, None)
    pool.submit(gate.wait, (PATIENCE_S,), note(returned))
    pool.submit(int, ("2",), note(returned))
    assert returned.get(timeout=PATIENCE_S) == (2, None)
    gate.set()
    assert returned.get(timeout=PATIENCE_S) == (True, None)
    end(pool)


def test_errors_are_returned_and_threads_live_on(no_leaks: None) -> None:
    pool, returned = make_pool(1)

    pool.submit(int, ("x",), note(returned))
    pool.submit(int, ("5",), note(returned))

    assert isinstance(returned.get(timeout=PATIENCE_S)[1], ValueError)
    assert returned.get(timeout=PATIENCE_S) == (5, None)
    end(pool)


def test_close_makes_no_further_calls_and_tells_when_all_ended(no_leaks: None) -> None:
    pool, returned = make_pool(1)
    begun, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def first() -> str:
        begun.set()
        gate.wait(PATIENCE_S)
        return "first"

    pool.submit(first, (), note(returned))
    pool.submit(int, (), note(returned))
    assert begun.wait(PATIENCE_S)
    pool.close(on_ended=ended.set)
    assert pool.join(timeout_ms=1) == ["test-0"]
    gate.set()

    assert ended.wait(PATIENCE_S)
    assert returned.get(timeout=PATIENCE_S) == ("first", None)
    end(pool)
    assert returned.empty()


def test_a_call_may_close_its_pool_and_wait_for_the_others(no_leaks: None) -> None:
    pool, returned = make_pool(2)
    begun, gate = threading.Event(), threading.Event()

    def other() -> None:
        begun.set()
        gate.wait(PATIENCE_S)

    def closing() -> tuple[list[str], list[str]]:
        pool.close()
        before = pool.join(timeout_ms=1)
        gate.set()
        return before, pool.join(timeout_ms=PATIENCE_S * 1000)

    pool.submit(other, (), lambda *_: None)
    assert begun.wait(PATIENCE_S)
    pool.submit(closing, (), note(returned))

    assert returned.get(timeout=PATIENCE_S) == ((["test-0"], []), None)
    end(pool)


def test_close_of_an_unused_pool_ends_at_once(no_leaks: None) -> None:
    pool, _ = make_pool(1)
    ended = threading.Event()

    pool.close(on_ended=ended.set)

    assert ended.is_set()


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_call_fails_without_a_thread_and_waits_for_one_that_there_is(
    no_leaks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, returned = make_pool(2)
    begun, gate = threading.Event(), threading.Event()

    def first() -> str:
        begun.set()
        gate.wait(PATIENCE_S)
        return "first"

    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        pool.submit(int, ("0",), note(returned))
        assert isinstance(returned.get(timeout=PATIENCE_S)[1], RuntimeError)
    pool.submit(first, (), note(returned))
    assert begun.wait(PATIENCE_S)
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        pool.submit(int, ("1",), note(returned))
    gate.set()

    assert [returned.get(timeout=PATIENCE_S) for _ in range(2)] == [("first", None), (1, None)]
    end(pool)
