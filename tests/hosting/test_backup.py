"""A backup of a broker that runs is one that a broker can start on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from small_stores import SMALL, all_records, find_records, flush, open_store
from sparrowmq import Admin, Message, PollConsumer, Producer
from sparrowmq.errors import SparrowError, StoreError, UsageError
from sparrowmq.hosting import store_backup
from sparrowmq.hosting.directory_check import FileFinding, Soundness, checking
from sparrowmq.hosting.store_backup import back_up
from sparrowmq.protocol.record import Record, encode_host
from sparrowmq.spark.store_files import StoreFiles
from sparrowmq.store import MessageStore
from sparrowmq.store.config_file import write_config
from sparrowmq.store.file_storage import FileStorage
from sparrowmq.store.index_file import index_file_size
from sparrowmq.testing import EmbeddedCluster

pytestmark = pytest.mark.slow

OPTIONS = ("--log-file-mib", "1")


class Load:
    """Sends and makes topics, without pause, from a thread of its own."""

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server
        self._is_done = threading.Event()
        self.sent: list[bytes] = []
        self.topics: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join()

    def _run(self) -> None:
        with (
            Producer("GID_p", name_server=self._name_server) as producer,
            Admin(name_server=self._name_server) as admin,
        ):
            while not self._is_done.is_set():
                bodies = [b"%d-%d" % (len(self.sent), n) + b"x" * 500 for n in range(20)]
                producer.send_batch([Message("T", body, keys=("k",)) for body in bodies])
                self.sent += bodies
                if len(self.topics) * 200 < len(self.sent):
                    topic = f"T_{len(self.topics)}"
                    admin.create_topic(topic, 1)
                    self.topics.append(topic)

    def wait_for(self, count: int) -> None:
        while len(self.sent) < count:
            self._thread.join(0.01)
            assert self._thread.is_alive()


def read_all(name_server: str) -> list[bytes]:
    bodies: list[bytes] = []
    with PollConsumer("GID_restored", "T", name_server=name_server, start="first") as consumer:
        while found := consumer.poll(timeout_ms=2_000):
            bodies += [message.body for message in found]
    return bodies


def test_copy_of_a_running_store_has_what_was_acknowledged(tmp_path: Path) -> None:
    backup = tmp_path / "restored"
    backup.mkdir()
    with EmbeddedCluster(tmp_path / "first", flush="async", options=OPTIONS) as cluster:
        cluster.create_topic("T", queues=4)
        with Load(cluster.name_server) as load:
            load.wait_for(6_000)
            sent, topics = list(load.sent), list(load.topics)
            copied = back_up(tmp_path / "first" / "store", backup / "store")
            later = len(load.sent)
    check = [sys.executable, "-m", "sparrowmq", "store", "check", str(backup / "store")]
    checked = subprocess.run(check, capture_output=True, text=True, check=False, timeout=60)
    with EmbeddedCluster(backup, options=OPTIONS) as restored:
        found = read_all(restored.name_server)
        with Admin(name_server=restored.name_server) as admin:
            known = set(admin.list_topics())
        log = restored.log_path.read_text()

    assert later > len(sent)
    assert copied > 6_000 * 500
    assert (checked.returncode, checked.stderr.rstrip()[-10:]) == (0, " 0 damaged"), checked.stdout
    assert set() == set(sent) - set(found)
    assert len(found) == len(set(found))
    assert set() == set(topics) - known
    assert "damaged" not in log


def test_only_a_store_is_copied_and_nothing_is_written_over(tmp_path: Path) -> None:
    store, full = tmp_path / "store", tmp_path / "full"
    (store / "commitlog").mkdir(parents=True)
    full.mkdir()
    (full / "mine").touch()

    with pytest.raises(UsageError, match=f"no commitlog and no config; {store} is one"):
        back_up(tmp_path, tmp_path / "copy")
    with pytest.raises(UsageError, match=r"is in .*, which is to be copied"):
        back_up(store, store / "copy")
    (tmp_path / "link").symlink_to(store)
    with pytest.raises(UsageError, match=r"is in .*, which is to be copied"):
        back_up(store, tmp_path / "link" / "copy")
    with pytest.raises(UsageError, match="is there already"):
        back_up(store, full)
    assert back_up(store, tmp_path / "copy") == 0
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["abort", "commitlog"]


def test_a_store_that_the_disk_gives_in_parts_is_copied_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "store", tmp_path / "copy"
    store = open_store(FileStorage(source))
    for number in range(20):
        store.put(Record(topic="T", queue_id=0, body=b"%d" % number), timestamp_ms=number)
    flush(store)
    records = all_records(store)
    store.close()
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, -(-size // 2), at))

    back_up(source, target)

    assert len(records) == 20
    copy = open_store(FileStorage(target))
    assert all_records(copy) == records
    copy.close()


def test_copy_that_was_interrupted_is_taken_for_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, host = tmp_path / "store", tmp_path / "copy", encode_host("127.0.0.1:10911")
    store = open_store(FileStorage(source))
    for n in range(80):
        record = Record(topic="T", queue_id=0, body=b"x" * 300, born_host=host, store_host=host)
        store.put(record, timestamp_ms=n)
    flush(store)
    store.close()
    copy = store_backup._copy_file

    def copy_first(path: Path, to: Path, *, begin_first: bool = False) -> int:
        if path.parent.name == "commitlog" and any(to.parent.iterdir()):
            raise KeyboardInterrupt
        return copy(path, to, begin_first=begin_first)

    monkeypatch.setattr(store_backup, "_copy_file", copy_first)
    with pytest.raises(KeyboardInterrupt):
        back_up(source, target)
    monkeypatch.undo()

    # Its last messages are there, and the others could have expired.
    assert len(list((target / "commitlog").iterdir())) == 1
    with pytest.raises(StoreError, match="unfinished copy"), checking(target):
        pass
    with pytest.raises(StoreError, match="unfinished copy"):
        open_store(FileStorage(target))
    with pytest.raises(StoreError, match="unfinished copy"):
        StoreFiles(str(target))
    with pytest.raises(StoreError, match="unfinished copy"):
        back_up(target, tmp_path / "second")
    with pytest.raises(UsageError, match="is an unfinished copy; remove it"):
        back_up(source, target)


def test_copy_knows_what_was_synced_and_that_its_messages_expire(tmp_path: Path) -> None:
    source, target, host = tmp_path / "store", tmp_path / "copy", encode_host("127.0.0.1:10911")
    store = open_store(FileStorage(source))
    for n in range(3):
        record = Record(topic="T", queue_id=0, body=b"x", born_host=host, store_host=host)
        store.put(record, timestamp_ms=n)
    store.close()
    back_up(source, target)

    copy = MessageStore(FileStorage(target), replace(SMALL, verify_bytes=0))
    report = copy.load(timestamp_ms=1)

    assert report.walked_from > 0
    assert copy.is_expiring
    copy.close()


def test_directory_that_the_system_refuses_is_an_error_of_the_store(tmp_path: Path) -> None:
    store, refused = tmp_path / "store", tmp_path / ("x" * 300)
    (store / "commitlog").mkdir(parents=True)

    with pytest.raises(StoreError, match=r"the copy cannot begin: .*: File name too long"):
        back_up(store, refused)
    # Later versions of Python take it for a name of nothing.
    with pytest.raises(SparrowError, match=r"cannot be read|is not a directory"), checking(refused):
        pass


def test_a_broker_without_messages_is_copied(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path / "first") as cluster:
        cluster.create_topic("T", queues=3)
        back_up(tmp_path / "first" / "store", tmp_path / "second" / "store")

    with (
        EmbeddedCluster(tmp_path / "second") as restored,
        Admin(name_server=restored.name_server) as admin,
    ):
        assert len(admin.route("T").subscribe_queues) == 3


def test_configuration_that_is_replaced_all_the_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "store" / "config"
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    config.mkdir()
    copy, tries = store_backup._copy_tree, 0

    def copy_and_replace(source: Path, target: Path, *, begin_first: bool = False) -> int:
        nonlocal tries
        copied = copy(source, target, begin_first=begin_first)
        if source == config and tries < 30:
            tries += 1
            (config / f"journal.{tries:08d}").write_text("x")
        return copied

    monkeypatch.setattr(store_backup, "_copy_tree", copy_and_replace)

    with pytest.raises(StoreError, match="replaced during each of 20 tries"):
        back_up(tmp_path / "store", tmp_path / "refused")
    assert tries == 20
    back_up(tmp_path / "store", tmp_path / "copied")
    copied = sorted(path.name for path in (tmp_path / "copied" / "config").iterdir())
    assert [f"journal.{n:08d}" for n in range(1, 31)] == copied


@pytest.mark.parametrize("part", ["consumequeue/quiet", "commitlog"])
def test_messages_that_expire_during_the_copying_leave_no_gap(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, host = tmp_path / "store", tmp_path / "copy", encode_host("127.0.0.1:10911")
    config = replace(SMALL, checkpoint_interval_ms=1)
    store = open_store(FileStorage(source), config)
    for n in range(80):
        topic = "quiet" if n < 25 else "T"
        record = Record(topic=topic, queue_id=0, body=b"x" * 300, born_host=host, store_host=host)
        store.put(record, timestamp_ms=n)
    flush(store)
    flush(store)
    copy = store_backup._copy_file

    def copy_and_expire(path: Path, to: Path, *, begin_first: bool = False) -> int:
        copied = copy(path, to, begin_first=begin_first)
        if path.is_relative_to(source / part):
            work = store.expire(before_timestamp_ms=70, files_max=99, reason="", timestamp_ms=80)
            if work is not None:
                work.run()
                store.sweep(9, has_topic=lambda _: True)
        return copied

    monkeypatch.setattr(store_backup, "_copy_file", copy_and_expire)
    back_up(source, target)

    copied = open_store(FileStorage(target), config)
    assert copied.queues.max_offset("quiet", 0) == 25
    assert [r.position for r in all_records(copied)] == [r.position for r in all_records(store)]
    assert 10 <= len(all_records(store)) < 25
    copied.close()
    store.close()


def test_a_store_is_held_while_it_is_checked(tmp_path: Path) -> None:
    open_store(FileStorage(tmp_path)).close()
    (tmp_path / "commitlog").mkdir()

    with suppress(ZeroDivisionError), checking(tmp_path) as findings:
        assert {each.state for each in findings} == {Soundness.SOUND}
        with pytest.raises(StoreError, match="in use"):
            FileStorage(tmp_path).lock()
        raise ZeroDivisionError
    open_store(FileStorage(tmp_path)).close()


def test_keys_that_are_indexed_during_the_copying_are_found_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, host = tmp_path / "store", tmp_path / "copy", encode_host("127.0.0.1:10911")
    config = replace(SMALL, checkpoint_interval_ms=1)
    store = open_store(FileStorage(source), config)

    def put_and_index(first: int, count: int) -> None:
        for n in range(first, first + count):
            record = Record(topic="T", queue_id=0, body=b"x", born_host=host, store_host=host)
            record.properties = f"KEYS\x01k{n % 3}\x02"
            store.put(record, timestamp_ms=n)
        flush(store)
        store.build_index()
        flush(store)

    put_and_index(0, 30)
    write, written = os.pwrite, 0

    def write_and_index(fd: int, data: bytes, at: int) -> int:
        nonlocal written
        monkeypatch.setattr(os, "pwrite", write)
        if os.fstat(fd).st_size == index_file_size(64, 256):
            written += 1
            put_and_index(30 * written, 3)
        monkeypatch.setattr(os, "pwrite", write_and_index)
        return write(fd, data, at)

    monkeypatch.setattr(store_backup, "_CHUNK_SIZE", 256)
    monkeypatch.setattr(os, "pwrite", write_and_index)
    back_up(source, target)
    monkeypatch.undo()

    assert written > 10
    copied = open_store(FileStorage(target), config)
    for key in ("k0", "k1", "k2"):
        queued = [r.position for r in all_records(copied) if f"{key}\x02" in r.properties]
        assert [r.position for r in find_records(copied, "T", key)] == queued
    copied.close()
    store.close()


def test_copy_has_the_bytes_and_the_sizes_of_the_files_also_of_a_disk_that_takes_them_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "store", tmp_path / "copy"
    store = open_store(FileStorage(source))
    put_all(store, range(40))
    store.close()
    write = os.pwrite

    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:100], at))
    back_up(source, target)

    of_store, of_copy = contents(source), contents(target)
    assert of_store.keys() - of_copy.keys() == {"lock", "stopped"}
    assert of_copy == {name: of_store[name] for name in of_copy if name != "abort"} | {"abort": b""}
    assert len(of_copy) > 8


def contents(root: Path) -> dict[str, bytes]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def put_all(store: MessageStore, numbers: range) -> None:
    host = encode_host("127.0.0.1:10911")
    for n in numbers:
        record = Record(topic="T", queue_id=0, body=b"%d" % n, born_host=host, store_host=host)
        record.properties = f"KEYS\x01k{n}\x02"
        store.put(record, timestamp_ms=n)


def test_copy_is_on_the_disk_as_a_whole_before_it_is_taken_for_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "store", tmp_path / "copy"
    store = open_store(FileStorage(source))
    put_all(store, range(40))
    store.close()
    sync, unlink, steps = os.fsync, Path.unlink, list[str]()

    def note_sync(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_relative_to(target):
            if path == target:
                # A name that comes later is not on the disk with these.
                steps.extend(f"name of {each}" for each in names(target))
            steps.append(str(path.relative_to(target)))
        sync(fd)

    def note_unlink(path: Path, missing_ok: bool = False) -> None:
        steps.append("unlink")
        unlink(path, missing_ok=missing_ok)

    def names(directory: Path) -> list[str]:
        return sorted(each.name for each in directory.iterdir())

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "unlink", note_unlink)
    back_up(source, target)

    assert steps[:2] == ["name of copying", "."]
    at = steps.index("unlink")
    found = {str(path.relative_to(target)) for path in target.rglob("*")} - {"abort"}
    assert found <= set(steps[:at])
    assert {f"name of {name}" for name in names(target)} <= set(steps[:at])
    assert steps[at + 1 :] == [*(f"name of {name}" for name in names(target)), "."]


def test_progress_in_a_copy_is_not_ahead_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a delayed message would be done, and its delivery not be in the copy."""
    source, target = tmp_path / "store", tmp_path / "copy"
    store = open_store(FileStorage(source))
    put_all(store, range(3))
    store.close()
    progress = source / "config" / "delayOffset.json"
    progress.parent.mkdir()
    progress.write_text("earlier")
    copy = store_backup._copy_file

    def copy_and_go_on(path: Path, to: Path, *, begin_first: bool = False) -> int:
        copied = copy(path, to, begin_first=begin_first)
        if path.parent.name == "commitlog":
            progress.write_text("later")
        return copied

    monkeypatch.setattr(store_backup, "_copy_file", copy_and_go_on)
    back_up(source, target)

    assert progress.read_text() == "later"
    assert (target / "config" / "delayOffset.json").read_text() == "earlier"


def test_topics_are_missed_in_a_store_that_was_stopped_and_damage_to_them_in_any(
    tmp_path: Path,
) -> None:
    storage = FileStorage(tmp_path)
    store = open_store(storage)
    put_all(store, range(3))
    store.close()
    stopped = configuration(tmp_path)
    # A power cut may keep a first message and lose its topic.
    (tmp_path / "abort").touch()
    killed = configuration(tmp_path)
    for _ in range(2):
        write_config(storage, "config/topics.json", b'{"topicConfigTable":{}}')
    (tmp_path / "config" / "topics.json").write_bytes(b"?")
    damaged = configuration(tmp_path)

    assert (stopped.state, killed.state) == (Soundness.DAMAGED, Soundness.SOUND)
    assert "the topics of the messages are unknown" in stopped.text
    assert damaged.state == Soundness.DAMAGED
    assert "topics.json cannot be understood" in damaged.text


def configuration(root: Path) -> FileFinding:
    with checking(root) as findings:
        return next(each for each in findings if each.path == "config")
