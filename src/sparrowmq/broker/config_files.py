"""Read and write the broker's configuration on a disk, as `config_saving` decides.

Tests: test_config_saving.py, test_file_damage.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec import Struct

from sparrowmq.broker.audit_log import AuditTable
from sparrowmq.broker.config_saving import (
    AUDIT_FILE,
    DELAYS_FILE,
    GROUPS_FILE,
    LOCKS_FILE,
    MODES_FILE,
    OFFSETS_FILE,
    PLANS_FILE,
    POPS_FILE,
    PROGRESS_FILES,
    TOPICS_FILE,
    SavedTables,
    SaveWork,
)
from sparrowmq.broker.journal_records import (
    Change,
    FiledVersions,
    GroupTableChange,
    TopicTableChange,
    decode_changes,
    encode_changes,
)
from sparrowmq.broker.pop_changes import PopTable
from sparrowmq.broker.queue_lock_file import LockTable
from sparrowmq.broker.timer_check_file import TIMER_CHECK_FILE, decode_timer_check
from sparrowmq.errors import StoreError
from sparrowmq.protocol.bodies import (
    ConsumerOffsetTable,
    DataVersion,
    DelayOffsetTable,
    GroupPlanTable,
    RequestModeTable,
    SubscriptionGroupTable,
    TopicConfigTable,
    decode_file,
)
from sparrowmq.store.config_file import read_config, write_config
from sparrowmq.store.journal import Journal, drop_segments, read_journal
from sparrowmq.store.storage import Storage

CONFIG_DIRECTORY = "config"

T = TypeVar("T", bound=Struct)

# What is wrong with a store that has messages, and no topics were ever saved.
TOPICS_MISSING = (
    f"{CONFIG_DIRECTORY}/{TOPICS_FILE} is missing, and the topics of the messages are unknown; "
    f"restore it from a copy, or create the topics again"
)


class SavedConfig(NamedTuple):
    """The tables that were saved.

    Args:
        losses: texts that name saved content that can no longer be read.
    """

    tables: SavedTables
    losses: list[str]

    @property
    def has_topics(self) -> bool:
        """Whether topics were ever saved; each broker with messages has saved their topics."""
        return self.tables.topics is not None or bool(self.tables.changes)


def read_tables(storage: Storage) -> SavedConfig:
    """Return the tables of the config files and the changes of the journal; the disk has them then.

    A file of which neither the content nor the backup can be read keeps the broker from its start,
    unless no message is lost or comes out of order without it: the record of changes by operators,
    and the progress of the timer topic, whose messages then come again.

    Raises: StoreError for another such file; OSError.
    """
    losses: list[str] = []
    damaged: set[str] = set()

    def read(name: str, table_type: type[T]) -> T | None:
        return read_with(name, partial(decode_file, table_type))

    def read_with(name: str, decode: Callable[[bytes], T]) -> T | None:
        found = read_config(storage, f"{CONFIG_DIRECTORY}/{name}", decode)
        if found.damage is not None:
            losses.append(found.damage)
            damaged.add(name)
        return found.value

    def read_dispensable(name: str, decode: Callable[[bytes], T]) -> T | None:
        try:
            return read_with(name, decode)
        except StoreError as error:
            losses.append(f"{error}; meanwhile it begins anew")
            return None

    if storage.has(CONFIG_DIRECTORY):
        # A killed process leaves files whose names only the page cache has. From now on they count.
        storage.sync_directory(CONFIG_DIRECTORY)
    topics, groups = read(TOPICS_FILE, TopicConfigTable), read(GROUPS_FILE, SubscriptionGroupTable)
    journal = read_journal(storage, CONFIG_DIRECTORY)
    changes = [change for batch in journal.batches for change in decode_changes(batch)]
    # The journal's changes are newer than a backup, so they are applied to it as well.
    if not losses:
        changes = _drop_void(changes, topics, groups, losses)
    losses += journal.damages
    tables = SavedTables(
        topics=topics,
        groups=groups,
        offsets=read(OFFSETS_FILE, ConsumerOffsetTable),
        delays=read(DELAYS_FILE, DelayOffsetTable),
        # A broker of 5.x that never delivered a timer message leaves a file of zeros.
        timers=read_dispensable(TIMER_CHECK_FILE, decode_timer_check),
        locks=read(LOCKS_FILE, LockTable),
        plans=read(PLANS_FILE, GroupPlanTable),
        modes=read(MODES_FILE, RequestModeTable),
        audit=read_dispensable(AUDIT_FILE, partial(decode_file, AuditTable)),
        pops=read(POPS_FILE, PopTable),
        changes=changes,
        segment=journal.last_segment,
        # All files have been read by now.
        damaged=frozenset(damaged),
    )
    return SavedConfig(tables, losses)


def _drop_void(
    changes: list[Change],
    topics: TopicConfigTable | None,
    groups: SubscriptionGroupTable | None,
    losses: list[str],
) -> list[Change]:
    """Return the changes, without those of files that another broker has written since."""
    filed = [change for change in changes if isinstance(change, FiledVersions)]
    for name, table, versions, change_type in (
        (TOPICS_FILE, topics, [each.topics for each in filed], TopicTableChange),
        (GROUPS_FILE, groups, [each.groups for each in filed], GroupTableChange),
    ):
        version = DataVersion() if table is None else table.data_version
        void = [change for change in changes if isinstance(change, change_type)]
        if void and version not in versions:
            losses.append(
                f"{len(void)} changes are void, since another broker has written {name} after "
                f"them: {', '.join(sorted({change.name for change in void})[:_NAMED_MAX])}"
            )
            changes = [change for change in changes if not isinstance(change, change_type)]
    return changes


# The most names of lost changes that are logged.
_NAMED_MAX = 20


def write_files(storage: Storage, work: SaveWork, journal: Journal) -> None:
    """Write config files, then remove the journal's segments that the files replace.

    The offsets come first: what a full disk refuses later costs no group its progress.

    Args:
        journal: appends the files' versions; each call of a broker gets the same one.

    Raises: OSError.
    """
    versions = b"" if work.filed is None else encode_changes([work.filed])
    for name, content in work.encode():
        # A file that cannot be written gets another segment only with another version.
        if versions not in (b"", journal.last_batch) and name not in PROGRESS_FILES:
            try:
                journal.append(work.segment, versions)
            finally:
                journal.close()
        path, keeps_backup = f"{CONFIG_DIRECTORY}/{name}", name in work.damaged
        write_config(storage, path, content, keeps_backup=keeps_backup)
    if work.ends_journal:
        drop_segments(storage, CONFIG_DIRECTORY, up_to=work.segment)
