"""The check of messages and configuration in a broker's directory that no broker uses.

Tests: test_backup.py.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from sparrowmq.broker.config_files import CONFIG_DIRECTORY, TOPICS_MISSING, read_tables
from sparrowmq.errors import SparrowError, StoreError, UsageError
from sparrowmq.store.commit_log import COMMIT_LOG_DIRECTORY
from sparrowmq.store.config import StoreConfig
from sparrowmq.store.file_storage import ReadOnlyStorage
from sparrowmq.store.store_check import FileFinding, Soundness, StoreCheck

__all__ = ["FileFinding", "Soundness", "checking"]


@contextmanager
def checking(root: Path) -> Generator[Iterator[FileFinding]]:
    """Yield an iterator of a store root's findings; a lock keeps brokers from starting meanwhile.

    Raises: UsageError if the directory is not a store root; StoreError if a process uses it,
        or it cannot be read.
    """
    try:
        if not root.is_dir():
            raise UsageError(f"{root} is not a directory")
        ensure_store(root)
        storage = ReadOnlyStorage(root)
        storage.lock()
    except OSError as error:
        raise StoreError(f"the store cannot be read: {error}") from error
    try:
        yield _check(storage)
    finally:
        storage.unlock()


def ensure_store(root: Path) -> None:
    """Raise UsageError for a directory that is not a store root; it names a store root below it.

    A broker without messages has a configuration already.
    """
    if (root / COMMIT_LOG_DIRECTORY).is_dir() or (root / CONFIG_DIRECTORY).is_dir():
        return
    hint = f"; {root / 'store'} is one" if (root / "store").is_dir() else ""
    raise UsageError(
        f"{root} is not a directory of a broker: it has no {COMMIT_LOG_DIRECTORY} and no "
        f"{CONFIG_DIRECTORY}{hint}"
    )


def _check(storage: ReadOnlyStorage) -> Iterator[FileFinding]:
    try:
        check = StoreCheck(storage, StoreConfig())
        yield from check.run()
        # A power cut may keep a first message and lose its topic; a clean stop loses neither.
        yield from _check_tables(storage, has_topics=check.is_stopped and check.has_messages)
    except OSError as error:
        raise StoreError(f"the store cannot be read: {error}") from error


def _check_tables(storage: ReadOnlyStorage, *, has_topics: bool) -> Iterator[FileFinding]:
    """Yield the finding on the configuration, which must have topics if `has_topics`."""
    try:
        saved = read_tables(storage)
    except SparrowError as error:
        yield FileFinding(CONFIG_DIRECTORY, Soundness.DAMAGED, str(error))
        return
    tables = saved.tables
    topics = len(tables.topics.topic_config_table) if tables.topics else 0
    groups = len(tables.groups.subscription_group_table) if tables.groups else 0
    text = f"{topics:,} topics, {groups:,} groups, {len(tables.changes):,} changes in the journal"
    losses = list(saved.losses)
    if has_topics and not saved.has_topics:
        losses.append(TOPICS_MISSING)
    state = Soundness.DAMAGED if losses else Soundness.SOUND
    yield FileFinding(CONFIG_DIRECTORY, state, "; ".join([text, *losses]))
