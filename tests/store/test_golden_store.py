from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from sparrowmq.protocol.record import decode_record
from sparrowmq.store import GetStatus, MessageStore, StoreConfig
from sparrowmq.store.config import ENTRY_SIZE
from sparrowmq.store.file_storage import FileStorage


def expected_of(archive: Path) -> Any:
    name = archive.name.removesuffix(".tar.gz")
    for path in (archive.with_name(f"{name}.json"), archive.with_name(f"{name}.json.gz")):
        if path.exists():
            data = path.read_bytes()
            return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    pytest.skip(f"no {name}.json beside the archive")


def config_of(expected: Any) -> StoreConfig:
    return StoreConfig(
        commit_log_file_size=expected["config"]["mappedFileSizeCommitLog"],
        consume_queue_file_size=expected["config"]["mappedFileSizeConsumeQueue"],
        message_bytes_max=expected["config"]["maxMessageSize"],
    )


def unpack(archive: Path, directory: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    return directory / "store"


def check_against(store: MessageStore, expected: Any) -> None:
    recovered = expected["recovered"]
    records = {r["physicalOffset"]: r for r in expected["records"] if r["crcOk"]}
    assert recovered["maxPhyOffset"] == store.appended_position == store.flushed_position
    wanted = {name: queue for name, queue in recovered["queues"].items() if queue["entries"]}
    assert sorted(wanted) == sorted(f"{topic}-{queue_id}" for topic, queue_id in store.queues())
    for name, queue in wanted.items():
        topic, _, text = name.rpartition("-")
        queue_id = int(text)
        assert queue["minOffset"] == store.min_offset(topic, queue_id)
        assert queue["maxOffset"] == store.max_offset(topic, queue_id)
        entries = [
            store.consume_queue_entry(topic, queue_id, offset)
            for offset in range(queue["minOffset"], queue["maxOffset"])
        ]
        assert [tuple(entry) for entry in queue["entries"]] == entries
        # Of several files, the answer depends on their times, which no archive keeps.
        if queue["maxOffset"] * ENTRY_SIZE <= config_of(expected).consume_queue_file_size:
            for timestamp_ms, offset in queue["offsetByTime"]:
                assert offset == store.offset_by_time(topic, queue_id, timestamp_ms)
        check_messages(store, topic, queue_id, records)


def check_messages(store: MessageStore, topic: str, queue_id: int, records: dict[int, Any]) -> None:
    first = store.min_offset(topic, queue_id)
    found = store.get(topic, queue_id, queue_offset=first, count_max=1 << 20, bytes_max=1 << 30)
    assert GetStatus.FOUND is found.status
    assert store.max_offset(topic, queue_id) == first + found.count
    at = 0
    for offset in range(first, first + found.count):
        record = decode_record(found.records, at)
        assert record.queue_offset == offset
        digest = hashlib.sha256(record.body).hexdigest()
        assert records[record.position]["storedBodySha256"] == digest
        at += record.size
    assert at == len(found.records)


@pytest.mark.golden_files("store-*.tar.gz")
def test_apache_directory_recovers_to_the_state_apache_recovers(
    golden_file: Path, tmp_path: Path
) -> None:
    expected = expected_of(golden_file)
    root = unpack(golden_file, tmp_path)
    store = MessageStore(FileStorage(root), config_of(expected))

    report = store.load(timestamp_ms=1)

    assert report.is_clean is not expected["abortFilePresent"]
    check_against(store, expected)
    store.close()
    assert not (root / "abort").exists()
    again = MessageStore(FileStorage(root), config_of(expected))
    assert again.load(timestamp_ms=2).is_clean
    check_against(again, expected)
    again.close()


@pytest.mark.golden_files("store-*.tar.gz")
def test_consume_queues_are_rebuilt_when_all_are_gone(golden_file: Path, tmp_path: Path) -> None:
    expected = expected_of(golden_file)
    root = unpack(golden_file, tmp_path)
    os.rename(root / "consumequeue", tmp_path / "gone")
    store = MessageStore(FileStorage(root), config_of(expected))

    report = store.load(timestamp_ms=1)

    assert report.rewritten_queues
    check_against(store, expected)
    store.close()
