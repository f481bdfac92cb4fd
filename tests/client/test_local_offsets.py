"""A BROADCASTING consumer's offsets in a file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sparrowmq import Message, MessageModel, MessageQueue, Producer, PushConsumer
from sparrowmq.client.local_offsets import LocalOffsets, default_directory
from sparrowmq.errors import ConfigError, StoreError
from sparrowmq.testing.embedded import EmbeddedCluster

QUEUE, OTHER = (MessageQueue("T", "b", n) for n in range(2))
PATIENCE_S = 60


def offsets_in(directory: Path) -> LocalOffsets:
    return LocalOffsets(directory, "10.0.0.1@DEFAULT", group="GID_b")


def test_offsets_are_there_again_and_in_rocketmqs_form(tmp_path: Path) -> None:
    first = offsets_in(tmp_path)
    first.put(QUEUE, 5)
    first.put(OTHER, 7)
    first.put(QUEUE, 6)

    assert offsets_in(tmp_path).load() == {QUEUE: 6, OTHER: 7}
    text = (tmp_path / "10.0.0.1@DEFAULT" / "GID_b" / "offsets.json").read_text()
    assert '"offsetTable"' in text
    assert '{"brokerName":"b","queueId":0,"topic":"T"}:6' in "".join(text.split())


def test_version_before_serves_where_the_last_is_damaged(tmp_path: Path) -> None:
    kept = offsets_in(tmp_path)
    kept.put(QUEUE, 5)
    kept.put(QUEUE, 6)
    path = tmp_path / "10.0.0.1@DEFAULT" / "GID_b" / "offsets.json"
    path.write_bytes(b"{")

    assert offsets_in(tmp_path).load() == {QUEUE: 5}
    path.with_suffix(".json.bak").write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"offsets\.json"):
        offsets_in(tmp_path).load()


def test_damaged_file_does_not_take_the_place_of_the_version_before(tmp_path: Path) -> None:
    kept = offsets_in(tmp_path)
    kept.put(QUEUE, 5)
    kept.put(QUEUE, 6)
    path = tmp_path / "10.0.0.1@DEFAULT" / "GID_b" / "offsets.json"

    for damage in (b"{", b""):
        # A process may be killed at any step of its first store.
        path.write_bytes(damage)
        again = offsets_in(tmp_path)
        assert again.load() == {QUEUE: 5}
        again.put(QUEUE, 7)
        assert offsets_in(tmp_path).load() == {QUEUE: 7}

    again.put(QUEUE, 8)
    path.write_bytes(b"{")
    assert offsets_in(tmp_path).load() == {QUEUE: 7}


def test_power_cut_leaves_no_empty_file_and_not_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, replace = os.fsync, os.replace

    def note_sync(descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        places = (tmp_path, *tmp_path.rglob("*"))
        steps.extend(f"sync {place.name}" for place in places if place.stat().st_ino == inode)
        sync(descriptor)

    def note_replace(old: Path, new: Path) -> None:
        steps.append(f"{old.name} becomes {new.name}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    kept = offsets_in(tmp_path / "new")

    kept.put(QUEUE, 5)
    assert steps == [
        "sync offsets.json.tmp",
        "offsets.json.tmp becomes offsets.json",
        *("sync GID_b", "sync 10.0.0.1@DEFAULT", "sync new", f"sync {tmp_path.name}"),
    ]
    steps.clear()
    kept.put(QUEUE, 6)
    assert steps == [
        "sync offsets.json.tmp",
        "offsets.json becomes offsets.json.bak",
        "offsets.json.tmp becomes offsets.json",
    ]


def test_offset_is_lowered_as_by_a_seek(tmp_path: Path) -> None:
    kept = offsets_in(tmp_path)
    kept.put(QUEUE, 5)

    kept.put(QUEUE, 3)

    assert offsets_in(tmp_path).load() == {QUEUE: 3}


def test_offset_that_is_stored_writes_no_file(tmp_path: Path) -> None:
    kept, path = offsets_in(tmp_path), tmp_path / "10.0.0.1@DEFAULT" / "GID_b" / "offsets.json"
    for queue in (QUEUE, OTHER):
        kept.put(queue, 5)
    written = path.stat().st_ino
    again = offsets_in(tmp_path)
    again.load()

    for each in (kept, again):
        for queue in (QUEUE, OTHER):
            each.put(queue, 5)
    assert path.stat().st_ino == written

    kept.put(QUEUE, 6)
    assert path.stat().st_ino != written


def test_offset_that_could_not_be_stored_is_stored_the_next_time(tmp_path: Path) -> None:
    kept, in_the_way = offsets_in(tmp_path), tmp_path / "10.0.0.1@DEFAULT"
    in_the_way.write_bytes(b"")
    with pytest.raises(StoreError, match=r"offsets\.json"):
        kept.put(QUEUE, 5)
    in_the_way.unlink()

    kept.put(QUEUE, 5)

    assert offsets_in(tmp_path).load() == {QUEUE: 5}


def test_nothing_is_known_at_first(tmp_path: Path) -> None:
    assert offsets_in(tmp_path).load() == {}
    assert default_directory().name == ".rocketmq_offsets"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)

    with pytest.raises(ConfigError, match="no home directory; set local_offset_dir"):
        default_directory()


@pytest.mark.slow
def test_broadcasting_goes_on_where_it_was_in_the_process_before(
    cluster: EmbeddedCluster, producer: Producer, topic: str, group: str, tmp_path: Path
) -> None:
    def consume_one() -> list[bytes]:
        seen: list[bytes] = []
        with PushConsumer(
            group,
            topic,
            name_server=cluster.name_server,
            listener=lambda messages, _: seen.extend(message.body for message in messages),
            message_model=MessageModel.BROADCASTING,
            start="first",
            local_offset_dir=tmp_path,
        ):
            deadline = time.monotonic() + PATIENCE_S
            while not seen:
                assert time.monotonic() < deadline
                time.sleep(0.005)
        return seen

    queue = MessageQueue(topic, "broker-a", 0)
    producer.send(Message(topic, b"first"), queue=queue)
    first = consume_one()
    producer.send(Message(topic, b"second"), queue=queue)

    assert [first, consume_one()] == [[b"first"], [b"second"]]
