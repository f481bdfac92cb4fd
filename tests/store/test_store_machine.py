"""Any order of put, flush, dispatch, get, kill and restart agrees with a list of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from small_stores import split_records
from sparrowmq.protocol.record import Record
from sparrowmq.store import (
    FlushMode,
    FlushWork,
    GetStatus,
    MessageStore,
    PutStatus,
    StoreConfig,
)

QUEUES = 3


def build_machine(
    new_storage: Callable[[], Any], new_record: Callable[..., Record]
) -> type[RuleBasedStateMachine]:
    class StoreMachine(RuleBasedStateMachine):
        @initialize(
            mode=st.sampled_from(FlushMode),
            verify_bytes=st.sampled_from((0, 1000, 1 << 20)),
            append_crc=st.booleans(),
        )
        def begin(self, mode: FlushMode, verify_bytes: int, append_crc: bool) -> None:
            self.config = StoreConfig(
                flush=mode,
                commit_log_file_size=2048,
                index_slot_count=64,
                index_entry_count=256,
                consume_queue_file_size=100,
                verify_bytes=verify_bytes,
                append_crc=append_crc,
                checkpoint_interval_ms=20,
            )
            self.storage = new_storage()
            self.now_ms = 1
            # (position, queue id, body) of all messages, in the log's order.
            self.messages: list[tuple[int, int, bytes]] = []
            self.readable_end = 0
            self.dispatched_count = 0
            self.work: FlushWork | None = None
            self._open()

        def _open(self) -> None:
            self.store = MessageStore(self.storage, self.config)
            report = self.store.load(timestamp_ms=self.now_ms)
            assert report.lost_synced_bytes == 0
            self.log_begin = report.min_position
            self.work = None
            self.readable_end = self.store.appended_position
            self.dispatched_count = len(self.messages)

        @rule(
            queue_id=st.integers(0, QUEUES - 1),
            sizes=st.lists(st.integers(0, 400), min_size=1, max_size=3),
        )
        def put(self, queue_id: int, sizes: list[int]) -> None:
            self.now_ms += 5
            end_position = 0
            records = [
                new_record(b"%d " % (len(self.messages) + n) + b"x" * size, queue_id=queue_id)
                for n, size in enumerate(sizes)
            ]
            for record in records:
                result = self.store.append(record, timestamp_ms=self.now_ms)
                assert result.status is PutStatus.PUT_OK
                assert result.queue_offset == sum(m[1] == queue_id for m in self.messages)
                self.messages.append((result.position, queue_id, record.body))
                end_position = result.end_position
            assert self.store.write().status is PutStatus.PUT_OK
            if self.config.flush is FlushMode.ASYNC:
                self.readable_end = end_position

        @rule()
        def put_too_much(self) -> None:
            result = self.store.put(new_record(b"x" * 2000), timestamp_ms=self.now_ms)
            assert result.status is PutStatus.MESSAGE_ILLEGAL

        @precondition(lambda self: self.work is None)
        @rule()
        def start_flush(self) -> None:
            self.work = self.store.flush_work()
            if self.work is not None:
                self.work.run()

        @precondition(lambda self: self.work is not None)
        @rule()
        def end_flush(self) -> None:
            assert self.work is not None
            self.store.flush_done(self.work, None)
            self.readable_end = max(self.readable_end, self.work.end_position)
            self.work = None

        @rule()
        def dispatch(self) -> None:
            expected = [
                (queue_id, position)
                for position, queue_id, _ in self.messages[self.dispatched_count :]
                if position < self.readable_end
            ]
            assert [(d.queue_id, d.position) for d in self.store.dispatch()] == expected
            self.dispatched_count += len(expected)

        @rule(
            queue_id=st.integers(0, QUEUES - 1),
            queue_offset=st.integers(0, 20),
            count_max=st.integers(1, 9),
            bytes_max=st.sampled_from((1, 600, 1 << 20)),
        )
        def get(self, queue_id: int, queue_offset: int, count_max: int, bytes_max: int) -> None:
            visible = [m for m in self.messages[: self.dispatched_count] if m[1] == queue_id]
            expired = sum(m[0] < self.log_begin for m in visible)
            got = self.store.queues.get(
                "T", queue_id, queue_offset=queue_offset, count_max=count_max, bytes_max=bytes_max
            )
            if queue_offset < expired:
                if visible:
                    assert (got.status, got.next_offset) == (GetStatus.OFFSET_TOO_SMALL, expired)
                return
            records = split_records(got.records)
            assert [m[2] for m in visible[queue_offset:]][: got.count] == [r.body for r in records]
            assert got.count == len(records) <= count_max
            assert (got.count > 0) is (queue_offset < len(visible))
            assert len(got.records) <= bytes_max or got.count == 1

        @rule(
            files_max=st.integers(1, 3),
            age_ms=st.sampled_from((None, 20, 100)),
            swept=st.integers(0, QUEUES),
            is_killed=st.booleans(),
        )
        def expire(self, files_max: int, age_ms: int | None, swept: int, is_killed: bool) -> None:
            work = self.store.expire(
                before_timestamp_ms=None if age_ms is None else self.now_ms - age_ms,
                files_max=files_max,
                reason="",
                timestamp_ms=self.now_ms,
            )
            if work is None:
                return
            if is_killed:
                self.kill()
                return
            work.run()
            self.store.sweep(swept, has_topic=lambda topic: True)
            self.log_begin = work.position

        @rule()
        def kill(self) -> None:
            self.storage = self.storage.kill()
            self._open()

        @rule()
        def restart(self) -> None:
            self.store.close()
            self._open()

        @invariant()
        def offsets_agree(self) -> None:
            if not hasattr(self, "store"):
                return
            counts, expired = [0] * QUEUES, [0] * QUEUES
            for position, queue_id, _ in self.messages[: self.dispatched_count]:
                counts[queue_id] += 1
                expired[queue_id] += position < self.log_begin
            assert counts == [self.store.queues.max_offset("T", q) for q in range(QUEUES)]
            assert expired == [self.store.queues.min_offset("T", q) for q in range(QUEUES)]

    return StoreMachine


@pytest.mark.slow
def test_store_agrees_with_a_list(
    new_storage: Callable[[], Any], new_record: Callable[..., Record]
) -> None:
    run_state_machine_as_test(
        build_machine(new_storage, new_record),
        settings=settings(
            max_examples=150,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
