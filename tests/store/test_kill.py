"""A writing process killed at any moment, on real files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from sparrowmq.protocol.record import decode_record
from sparrowmq.store import FlushMode, MessageStore, StoreConfig
from sparrowmq.store.file_storage import FileStorage

CYCLES = 10
WRITER = Path(__file__).with_name("endless_writer.py")


def run_until_killed(directory: Path, mode: str, first: int, lines: int) -> list[list[int]]:
    with subprocess.Popen(
        [sys.executable, str(WRITER), str(directory), mode, str(first)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        printed += process.stdout.readlines()
    return [[int(part) for part in line.split()] for line in printed if line.endswith("\n")]


def read_all(store: MessageStore) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for topic, queue_id in store.queues:
        offset = 0
        while offset < store.queues.max_offset(topic, queue_id):
            got = store.queues.get(
                topic, queue_id, queue_offset=offset, count_max=500, bytes_max=1 << 22
            )
            at = 0
            while at < len(got.records):
                record = decode_record(got.records, at)
                assert (record.queue_id, record.queue_offset) == (queue_id, offset)
                found[queue_id, offset] = int(record.body.split()[0])
                at += record.size
                offset += 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_killed_writer_loses_nothing_it_acknowledged(mode: str, tmp_path: Path) -> None:
    rng = Random(3)
    acknowledged: dict[tuple[int, int], int] = {}
    number = 0
    config = StoreConfig(
        flush=FlushMode(mode),
        commit_log_file_size=64 << 10,
        index_slot_count=64,
        index_entry_count=256,
        consume_queue_file_size=2000,
    )
    for _ in range(CYCLES):
        for queue_id, offset, printed in run_until_killed(
            tmp_path, mode, number, rng.randrange(1, 400)
        ):
            acknowledged[queue_id, offset] = printed
        store = MessageStore(FileStorage(tmp_path), config)
        report = store.load(timestamp_ms=1)
        found = read_all(store)

        assert not report.is_clean
        assert report.lost_synced_bytes == 0
        assert acknowledged.items() <= found.items()
        assert len(set(found.values())) == len(found)
        number = max(found.values()) + 1
        if rng.random() < 0.5:
            store.close()
        else:
            # As if this process were killed too; only the lock is given back.
            store._release()
