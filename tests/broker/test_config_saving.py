"""Changes of the configuration survive a crash once they are answered, and cost what they are."""

from __future__ import annotations

import errno
import json
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import structs
from tests.broker.disk_machine import Machine

from sparrowmq.broker import subscription_groups
from sparrowmq.broker.broker import Broker
from sparrowmq.broker.config_files import CONFIG_DIRECTORY, read_tables, write_files
from sparrowmq.broker.config_saving import (
    AUDIT_FILE,
    DELAYS_FILE,
    GROUPS_FILE,
    JOURNAL_CHANGES_MAX,
    LOCKS_FILE,
    MODES_FILE,
    OFFSETS_FILE,
    PLANS_FILE,
    POPS_FILE,
    TOPICS_FILE,
    JournalWork,
    SaveWork,
)
from sparrowmq.broker.journal_records import (
    FiledVersions,
    GroupTableChange,
    TopicTableChange,
    encode_changes,
)
from sparrowmq.broker.subscription_groups import SubscriptionGroups
from sparrowmq.broker.timer_check_file import TIMER_CHECK_FILE
from sparrowmq.broker.topic_configs import plain
from sparrowmq.errors import StoreError
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import (
    ConsumerOffsetTable,
    DataVersion,
    GroupPlan,
    RequestMode,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    decode_file,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.record import Record
from sparrowmq.simulation.faulty_disk import PowerCut, SimulatedStorage
from sparrowmq.store.file_storage import FileStorage
from sparrowmq.store.journal import Journal, list_segments
from sparrowmq.store.storage import StorageFile

FILES = (
    *(TOPICS_FILE, GROUPS_FILE, OFFSETS_FILE, DELAYS_FILE, LOCKS_FILE),
    *(PLANS_FILE, MODES_FILE, POPS_FILE, AUDIT_FILE, TIMER_CHECK_FILE),
)


class Disk:
    """Does for a rig what a server does, and counts it."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        self.storage = FileStorage(rig.root)
        self.journal = Journal(self.storage, CONFIG_DIRECTORY)
        self.version_journal = Journal(self.storage, CONFIG_DIRECTORY)
        self.appended_bytes = 0
        self.files: list[str] = []
        rig.holds_work = True

    def append(self, error: Exception | None = None) -> JournalWork | None:
        broker = self.rig.broker
        work: JournalWork | None = broker.journal_work(now_ms=self.rig.now_ms)
        if work is not None:
            if work.changes and error is None:
                batch = work.encode()
                self.appended_bytes += len(batch)
                self.journal.append(work.segment, batch)
            broker.journaled(work, error)
        return work

    def save(self) -> None:
        broker = self.rig.broker
        work = broker.save_work(now_ms=self.rig.now_ms)
        if work is not None:
            self.files += work.files
            write_files(self.storage, work, self.version_journal)
            broker.saved(work, None)

    def turn(self) -> JournalWork | None:
        work = self.append()
        self.save()
        return work

    def pass_interval(self) -> JournalWork | None:
        self.rig.now_ms += self.rig.config.offsets_save_interval_ms
        self.rig.broker.tick(now_ms=self.rig.now_ms, timestamp_ms=self.rig.timestamp_ms)
        return self.turn()

    def stop(self) -> None:
        self.append()
        self.rig.broker.ask_last_save()
        self.save()

    def topics(self) -> dict[str, int]:
        """Return what a broker that starts now knows."""
        topics = reload(self.rig).state.topics
        return {topic.topic_name: topic.read_queue_nums for topic in topics}


def reload(rig: Any, *, losses: int = 0) -> Any:
    """Return a broker with what the disk has, after a crash."""
    saved = read_tables(FileStorage(rig.root))
    assert len(saved.losses) == losses
    return Broker(
        rig.config,
        rig.store,
        random_below=lambda count: 0,
        saved=saved.tables,
        now_ms=rig.now_ms,
        timestamp_ms=rig.timestamp_ms,
    )


def filed_topics(rig: Any) -> TopicConfigTable:
    return decode_file(TopicConfigTable, (rig.root / CONFIG_DIRECTORY / "topics.json").read_bytes())


@pytest.fixture
def disk(make_rig: Any) -> Disk:
    return Disk(make_rig())


def change_topic(disk: Disk, name: str, queues: int) -> None:
    rig = disk.rig
    fields = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
    }
    before = len(rig.broker.state.pending)
    command = RemotingCommand(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields)
    rig.handle(rig.connect(), command)
    assert len(rig.broker.state.pending) == before + 1


def test_a_thousand_topics_one_after_another_cost_their_changes_and_survive(disk: Disk) -> None:
    for number in range(1_000):
        change_topic(disk, f"topic-{number}", 2)
        disk.turn()

    known = disk.topics()
    assert all(known[f"topic-{number}"] == 2 for number in range(1_000))
    assert disk.appended_bytes < 1_000 * 600
    assert disk.files == []
    disk.pass_interval()
    disk.pass_interval()
    assert disk.files.count("topics.json") == 1
    assert known.keys() == filed_topics(disk.rig).topic_config_table.keys()
    assert list_segments(disk.storage, CONFIG_DIRECTORY) == []


def test_changes_outlive_a_crash_at_any_moment(disk: Disk) -> None:
    change_topic(disk, "kept", 1)
    change_topic(disk, "removed", 1)
    disk.append()
    disk.pass_interval()
    disk.pass_interval()
    change_topic(disk, "kept", 5)
    disk.rig.broker.state.topics.remove("removed", timestamp_ms=9)
    disk.rig.broker.state.note_topics_changed()
    disk.append()
    version = disk.rig.broker.state.topics.version

    again = reload(disk.rig)

    assert again.state.topics.find("kept").read_queue_nums == 5
    assert again.state.topics.find("removed") is None
    assert version == again.state.topics.version


def test_after_a_clean_stop_rocketmqs_files_have_everything_and_there_is_no_journal(
    disk: Disk,
) -> None:
    change_topic(disk, "new", 3)
    disk.rig.broker.state.find_group("GID_new", timestamp_ms=1)
    disk.stop()

    names = {path.name for path in (disk.rig.root / CONFIG_DIRECTORY).iterdir()}
    table = json.loads((disk.rig.root / CONFIG_DIRECTORY / "topics.json").read_bytes())
    assert not any(name.startswith("journal") for name in names)
    assert table["topicConfigTable"]["new"]["readQueueNums"] == 3
    assert b"GID_new" in (disk.rig.root / CONFIG_DIRECTORY / "subscriptionGroup.json").read_bytes()


def test_files_that_were_written_before_the_journal_was_dropped_agree_with_it(
    disk: Disk, tmp_path: Path
) -> None:
    change_topic(disk, "new", 3)
    disk.append()
    journal = tmp_path / "journal"
    shutil.copy(disk.rig.root / CONFIG_DIRECTORY / "journal.00000001", journal)
    change_topic(disk, "late", 4)
    broker = disk.rig.broker
    broker.ask_last_save()
    work = broker.save_work(now_ms=disk.rig.now_ms)
    # The crash comes before the segments are removed.
    write_files(disk.storage, work._replace(ends_journal=False), disk.version_journal)

    assert (
        journal.read_bytes() == (disk.rig.root / CONFIG_DIRECTORY / "journal.00000001").read_bytes()
    )
    assert (disk.topics()["new"], disk.topics()["late"]) == (3, 4)


def test_files_that_were_read_after_a_kill_outlive_a_power_cut() -> None:
    """The start goes on from them, and its groups from their offsets."""
    reached = set[int | None]()
    for seed in range(40):
        dice = Random(seed)
        storage = SimulatedStorage(dice)
        for offset in range(dice.randrange(3)):
            save_offset(storage, offset)
        storage.changes_left = dice.randrange(9)
        with suppress(PowerCut):
            save_offset(storage, 7)

        read = read_tables(storage.kill()).tables
        assert read_tables(storage.lose_power()).tables == read
        reached.add(None if read.offsets is None else read.offsets.offset_table["T@G"][0])
    assert reached == {None, 0, 1, 7}


def save_offset(storage: SimulatedStorage, offset: int) -> None:
    table = ConsumerOffsetTable(offset_table={"T@G": {0: offset}})
    write_files(storage, SaveWork(1, {OFFSETS_FILE: table}), Journal(storage, CONFIG_DIRECTORY))


def test_change_while_the_files_are_written_outlives_a_crash(disk: Disk) -> None:
    change_topic(disk, "early", 3)
    disk.append()
    disk.rig.broker.ask_last_save()
    work = disk.rig.broker.save_work(now_ms=disk.rig.now_ms)
    change_topic(disk, "late", 4)
    disk.append()
    write_files(disk.storage, work, disk.version_journal)

    assert (disk.topics()["early"], disk.topics()["late"]) == (3, 4)


def test_journal_stays_for_a_change_of_a_file_that_is_not_due_yet(disk: Disk) -> None:
    change_topic(disk, "new", 3)
    disk.append()
    disk.pass_interval()
    disk.rig.broker.state.find_group("GID_late", timestamp_ms=1)
    disk.append()
    disk.pass_interval()

    assert TOPICS_FILE in disk.files
    assert GROUPS_FILE not in disk.files
    assert reload(disk.rig).state.groups.find("GID_late") is not None


def test_changes_behind_a_file_that_another_broker_has_written_are_void(disk: Disk) -> None:
    change_topic(disk, "new", 3)
    disk.append()
    theirs = TopicConfigTable(
        topic_config_table={"theirs": plain("theirs", queue_count=1)},
        data_version=DataVersion(timestamp_ms=77, counter=3),
    )
    path = disk.rig.root / CONFIG_DIRECTORY / "topics.json"
    path.write_bytes(encode_body(theirs, pretty=True))

    saved = read_tables(disk.storage)

    assert not any(isinstance(change, TopicTableChange) for change in saved.tables.changes)
    (loss,) = saved.losses
    assert "another broker has written topics.json" in loss
    assert "new" in loss


def test_changes_behind_groups_that_another_broker_has_written_are_void(disk: Disk) -> None:
    disk.rig.broker.state.find_group("GID_new", timestamp_ms=1)
    disk.append()
    theirs = SubscriptionGroupTable(data_version=DataVersion(timestamp_ms=77, counter=3))
    path = disk.rig.root / CONFIG_DIRECTORY / GROUPS_FILE
    path.write_bytes(encode_body(theirs, pretty=True))

    saved = read_tables(disk.storage)

    assert not any(isinstance(change, GroupTableChange) for change in saved.tables.changes)
    assert ["GID_new" in loss for loss in saved.losses] == [True]


def test_changes_behind_a_damaged_file_are_added_to_its_backup(disk: Disk) -> None:
    for name in ("first", "second"):
        change_topic(disk, name, 1)
        disk.append()
        disk.pass_interval()
        disk.pass_interval()
    change_topic(disk, "third", 1)
    disk.append()
    (disk.rig.root / CONFIG_DIRECTORY / TOPICS_FILE).write_bytes(b'{"half":')

    saved = read_tables(disk.storage)

    assert saved.tables.topics is not None
    assert "first" in saved.tables.topics.topic_config_table
    assert "third" in {c.name for c in saved.tables.changes if isinstance(c, TopicTableChange)}
    assert len(saved.losses) == 1


def test_failed_append_is_repeated_where_it_endangers_nothing(disk: Disk) -> None:
    change_topic(disk, "first", 1)
    first = disk.append()
    change_topic(disk, "second", 1)
    failed = disk.append(OSError("no space left"))
    again = disk.pass_interval()

    assert first is not None
    assert failed is not None
    assert again is not None
    assert first.segment == failed.segment == again.segment - 1
    assert {"first", "second"} <= disk.topics().keys()


def change_all(disk: Disk) -> None:
    """Change every table."""
    state, now_ms, queue = disk.rig.broker.state, disk.rig.now_ms, MessageQueue("T", "broker-a", 0)
    change_topic(disk, "changed", 1)
    state.find_group("GID_changed", timestamp_ms=1)
    state.locks.try_lock_batch("G", [queue], "c", now_ms=now_ms)
    plan = GroupPlan(epoch=0, client_ids=["c"], owners={"c": [queue]})
    assert state.plans.offer("G", plan, listed=["c"], now_ms=now_ms, timestamp_ms=1) is None
    state.modes.put(RequestMode(topic="T", consumer_group="G"))
    state.journal.ask()
    for table in (state.offsets, state.delays, state.timers, state.pops, state.audit):
        table.is_changed = True


def test_topic_that_changes_while_its_change_is_appended_is_not_saved(disk: Disk) -> None:
    topics = disk.rig.broker.state.topics
    saved = []
    for queues in (1, 2):
        topics.put(plain("T", queue_count=queues), timestamp_ms=1)
        topics.take_changes()
        if queues == 1:
            topics.put(plain("T", queue_count=9), timestamp_ms=1)
        topics.note_written("T")
        saved.append((topics.is_saved("T"), topics.find_plain("T") is not None))

    assert saved == [(False, False), (True, True)]


def test_locks_count_as_written_once_the_journal_has_them(disk: Disk) -> None:
    state = disk.rig.broker.state
    queue = MessageQueue("T", "broker-a", 0)
    state.locks.try_lock_batch("G", [queue], "c", now_ms=disk.rig.now_ms)
    state.journal.ask()
    disk.append(OSError("no space left"))
    failed = state.locks_written
    disk.pass_interval()

    assert (failed, state.locks_written) == (0, state.locks.changes)


def test_lock_that_is_taken_during_an_append_counts_as_written_with_the_next(disk: Disk) -> None:
    broker, now_ms = disk.rig.broker, disk.rig.now_ms
    locks = broker.state.locks
    disk.append()
    locks.try_lock_batch("G", [MessageQueue("T", "broker-a", 0)], "c", now_ms=now_ms)
    broker.state.journal.ask()
    work = broker.journal_work(now_ms=now_ms)
    locks.try_lock_batch("G", [MessageQueue("T", "broker-a", 1)], "c", now_ms=now_ms)
    broker.journaled(work, None)
    before = broker.state.locks_written
    disk.pass_interval()

    assert before < locks.changes == broker.state.locks_written


def test_changes_of_each_kind_that_were_not_appended_are_appended_later(disk: Disk) -> None:
    disk.append()
    change_all(disk)
    failed = disk.append(OSError("no space left"))
    again = disk.pass_interval()

    assert failed is not None
    assert again is not None
    assert {type(each).__name__ for each in again.changes} == {
        *("TopicTableChange", "GroupTableChange", "LockChange", "PlanChange", "RequestModeChange")
    }
    assert len(again.changes) == len(failed.changes) == 5


@pytest.mark.parametrize("error", [None, OSError("no space left")])
def test_each_file_that_was_not_written_is_written_later(disk: Disk, error: OSError | None) -> None:
    broker = disk.rig.broker
    disk.append()
    change_all(disk)
    disk.append(error)
    broker.ask_last_save()
    work = broker.save_work(now_ms=disk.rig.now_ms)
    assert set(work.files) == set(FILES)

    broker.saved(work, OSError("no space left"))
    disk.pass_interval()

    assert set(disk.files) == set(FILES)
    # Written with no pops.
    broker.state.offsets.is_changed = True
    broker.ask_last_save()
    broker.saved(broker.save_work(now_ms=disk.rig.now_ms), OSError("no space left"))
    disk.files.clear()
    disk.pass_interval()
    assert OFFSETS_FILE in disk.files


def test_backup_of_a_damaged_file_is_kept_until_the_file_is_written(disk: Disk) -> None:
    disk.stop()
    (disk.rig.root / CONFIG_DIRECTORY / OFFSETS_FILE).write_bytes(b"{")
    broker = reload(disk.rig, losses=1)
    damaged = []
    for error in (OSError("no space left"), None, None):
        broker.state.offsets.is_changed = True
        broker.ask_last_save()
        work = broker.save_work(now_ms=disk.rig.now_ms)
        damaged.append(work.damaged)
        broker.saved(work, error)

    assert damaged == [{OFFSETS_FILE}, {OFFSETS_FILE}, set()]


def test_backup_of_a_damaged_file_does_not_become_a_copy_of_it(disk: Disk) -> None:
    disk.stop()
    file = disk.rig.root / CONFIG_DIRECTORY / OFFSETS_FILE
    backup = file.with_name(f"{OFFSETS_FILE}.bak")
    file.write_bytes(b"{")
    kept = backup.read_bytes()
    broker = reload(disk.rig, losses=1)
    broker.state.offsets.is_changed = True
    broker.ask_last_save()
    work = broker.save_work(now_ms=disk.rig.now_ms)
    write_files(disk.storage, work, disk.version_journal)

    assert backup.read_bytes() == kept
    assert read_tables(disk.storage).losses == []


def test_a_full_disk_takes_the_offsets_before_it_refuses_the_rest() -> None:
    storage = SimulatedStorage(Random(0))
    for offset in range(3):
        tables = {
            OFFSETS_FILE: ConsumerOffsetTable(offset_table={"T@G": {0: offset}}),
            TOPICS_FILE: TopicConfigTable(),
        }
        storage.is_full = offset == 2
        with suppress(OSError):
            work = SaveWork(1, tables, filed=FiledVersions(), segment=1)
            write_files(storage, work, Journal(storage, CONFIG_DIRECTORY))

    saved = read_tables(storage).tables.offsets
    assert saved == ConsumerOffsetTable(offset_table={"T@G": {0: 2}})


def test_a_full_disk_gets_no_segment_of_the_journal_with_each_try() -> None:
    machine = Machine(SimulatedStorage(Random(0)))
    machine.pass_time(5_000)
    machine.broker.state.put_topic(plain("new", queue_count=1), timestamp_ms=1)
    machine.end_turn()
    machine.storage.bytes_left = 0
    machine.pass_time(20_000)

    assert len(list_segments(machine.storage, CONFIG_DIRECTORY)) == 1
    assert "new" in {
        change.name
        for change in read_tables(machine.storage).tables.changes
        if isinstance(change, TopicTableChange)
    }
    machine.storage.mend()
    machine.pass_time(2_000)
    topics = read_tables(machine.storage).tables.topics
    assert topics is not None
    assert "new" in topics.topic_config_table
    assert list_segments(machine.storage, CONFIG_DIRECTORY) == []


@pytest.mark.parametrize("name", [TOPICS_FILE, GROUPS_FILE])
def test_a_file_that_cannot_be_written_leaves_no_segment_with_each_try(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(SimulatedStorage(Random(0)))
    machine.pass_time(5_000)
    state, create = machine.broker.state, machine.storage.create

    def refuse(path: str, *, size: int, pinned: bool = False) -> StorageFile:
        if path == f"{CONFIG_DIRECTORY}/{name}.tmp":
            raise PermissionError(errno.EACCES, "another user's", path)
        return create(path, size=size, pinned=pinned)

    monkeypatch.setattr(machine.storage, "create", refuse)
    for topic in ("first", "second"):
        state.put_topic(plain(topic, queue_count=1), timestamp_ms=machine.now_ms)
        state.find_group(f"GID_{topic}", timestamp_ms=machine.now_ms)
        machine.end_turn()
        machine.pass_time(20_000)

    # Of each topic: its change, and the versions of the files that have it.
    assert len(list_segments(machine.storage, CONFIG_DIRECTORY)) <= 4
    found = read_tables(machine.storage)
    names = {each.name for each in found.tables.changes if isinstance(each, TopicTableChange)}
    assert (names, found.losses) == ({"first", "second"}, [])
    monkeypatch.undo()
    machine.pass_time(2_000)
    assert list_segments(machine.storage, CONFIG_DIRECTORY) == []


def test_journal_of_a_crash_is_filed_after_the_start(disk: Disk) -> None:
    change_topic(disk, "new", 3)
    disk.append()
    disk.rig.broker = reload(disk.rig)
    disk.journal = Journal(disk.storage, CONFIG_DIRECTORY)

    disk.pass_interval()
    disk.pass_interval()

    assert filed_topics(disk.rig).topic_config_table["new"].read_queue_nums == 3
    assert list_segments(disk.storage, CONFIG_DIRECTORY) == []


def test_long_journal_has_the_files_written_though_changes_keep_coming(disk: Disk) -> None:
    topics = disk.rig.broker.state.topics
    for number in range(JOURNAL_CHANGES_MAX):
        topics.put(plain(f"t{number}", queue_count=1), timestamp_ms=1)
    disk.rig.broker.state.note_topics_changed()
    disk.append()

    disk.pass_interval()

    assert "topics.json" in disk.files
    disk.files.clear()
    change_topic(disk, "later", 1)
    disk.append()
    disk.pass_interval()
    assert disk.files == [AUDIT_FILE]


@pytest.mark.parametrize("pops", [False, True])
def test_offsets_of_groups_that_pop_wait_for_the_flush_of_the_logs_end(
    disk: Disk, pops: bool
) -> None:
    store, offsets = disk.rig.broker.state.store, disk.rig.broker.state.offsets
    disk.pass_interval()
    store.append(Record(topic="T", queue_id=0, body=b"x"), timestamp_ms=1)
    commit = offsets.commit_popped if pops else offsets.commit
    commit("G", "T", 0, offset=0)
    disk.files.clear()

    disk.pass_interval()
    assert (OFFSETS_FILE in disk.files) is not pops
    work = store.flush_work()
    work.run()
    store.flush_done(work, None)
    disk.pass_interval()
    assert OFFSETS_FILE in disk.files


def test_first_and_last_files(disk: Disk) -> None:
    # On a full disk the offsets have the room of both files.
    assert {OFFSETS_FILE, f"{OFFSETS_FILE}.bak"} <= set(disk.storage.list_names(CONFIG_DIRECTORY))
    queue = MessageQueue("T", "broker-a", 0)
    disk.rig.broker.state.locks.try_lock_batch("G", [queue], "c", now_ms=disk.rig.now_ms)
    for _ in range(3):
        disk.pass_interval()
    disk.files.clear()

    disk.stop()

    # A lock keeps the rest of its lease.
    assert LOCKS_FILE in disk.files


def test_topic_without_a_name_has_that_of_its_entry(disk: Disk) -> None:
    topics = disk.rig.broker.state.topics
    nameless = TopicConfig(topic_name="", read_queue_nums=3, write_queue_nums=5, perm=4)
    topics.load(TopicConfigTable(topic_config_table={"T": nameless}))

    assert topics.find("T") == structs.replace(nameless, topic_name="T")


def test_groups_are_made_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = SubscriptionGroups(auto_create=True)
    groups.load(SubscriptionGroupTable())
    monkeypatch.setattr(subscription_groups, "GROUPS_MAX", len(groups) + 1)

    assert groups.may_create("GID_a")
    groups.put(SubscriptionGroupConfig(group_name="GID_a"), timestamp_ms=1)
    assert not groups.may_create("GID_b")


def test_lock_waits_for_no_file(disk: Disk) -> None:
    state = disk.rig.broker.state
    disk.pass_interval()
    state.offsets.commit("G", "T", 0, offset=1)
    disk.rig.now_ms += 1_000
    disk.rig.broker.tick(now_ms=disk.rig.now_ms, timestamp_ms=1)
    save = disk.rig.broker.save_work(now_ms=disk.rig.now_ms)
    state.put_group(state.groups.find("TOOLS_CONSUMER"), timestamp_ms=1)

    assert [name for name in save.tables if "Offset" in name] == ["consumerOffset.json"]
    assert disk.append() is not None


def test_a_damaged_file_keeps_a_broker_down_only_if_messages_depend_on_it(tmp_path: Path) -> None:
    directory = tmp_path / CONFIG_DIRECTORY
    directory.mkdir()
    refused: dict[str, str] = {}
    begun_anew: dict[str, list[str]] = {}
    for name in FILES:
        (directory / name).write_bytes(b'{"half":')
        try:
            begun_anew[name] = read_tables(FileStorage(tmp_path)).losses
        except StoreError as error:
            refused[name] = str(error)
        (directory / name).unlink()

    assert set(begun_anew) == {AUDIT_FILE, TIMER_CHECK_FILE}
    assert set(refused) == set(FILES) - set(begun_anew)
    for name, text in (refused | {name: loss for name, (loss,) in begun_anew.items()}).items():
        assert f"{CONFIG_DIRECTORY}/{name} cannot be understood" in text


def test_batch_of_a_later_version_is_refused(disk: Disk) -> None:
    batch = encode_changes([FiledVersions()]).replace(b'"files"', b'"other"')
    disk.journal.append(1, batch)

    with pytest.raises(StoreError, match="journal of config changes cannot be understood"):
        read_tables(disk.storage)
