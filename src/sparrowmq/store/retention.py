"""Decides when messages expire: after a time, at an hour of the day, or when the disk is full.

RocketMQ's rules apply every 10 s. Files whose messages are all older than the time to keep are
removed within the configured hours, and at any hour while the disk is fuller than a first limit.
Above a second limit the oldest file is removed whatever its age. Above a third limit no message is
accepted until there is room.

Differs from RocketMQ: a file's age is the age of the next file's first message, which is younger
than all messages of the file. RocketMQ takes the file's last modification time, which a copied
directory does not keep. Above the second limit one file is removed at a time before the disk is
checked again; RocketMQ removes ten. Source: CleanCommitLogService, DefaultMessageStore.java, 4.9.
Tests: test_expiry.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sparrowmq.config import check_settings, setting
from sparrowmq.errors import ConfigError
from sparrowmq.store.expiry import ExpiryWork
from sparrowmq.store.message_store import MessageStore

# MessageStoreConfig.cleanResourceInterval.
CHECK_INTERVAL_MS = 10_000
# The interval while files wait for a checkpoint.
CHECKPOINT_WAIT_MS = 500
# MappedFileQueue.DELETE_FILES_BATCH_MAX.
FILES_MAX = 10
HOUR_MS = 3_600_000
RESERVED_HOURS = 72
RESERVED_HOURS_MAX = 876_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """When messages expire."""

    # None means `RESERVED_HOURS`, but keeps all in a directory whose first messages come from a
    # version without expiry.
    retention_hours: int | None = setting(
        None,
        "the shortest time for which messages are kept; 0 keeps all; the default is 72, but a "
        "store made before messages expired keeps all until this option is given",
        low=0,
        high=RESERVED_HOURS_MAX,
        unit="h",
        kind=int,
        source="MessageStoreConfig.fileReservedTime",
    )
    delete_when: str = setting(
        "04",
        "the hours of the day, in local time, at which expired messages are removed, such as 04;16",
        unit="h",
        source="MessageStoreConfig.deleteWhen",
    )
    disk_expire_percent: int = setting(
        75,
        "the use of the disk above which expired messages are removed at any hour",
        low=0,
        high=100,
        unit="%",
        source="MessageStoreConfig.diskMaxUsedSpaceRatio",
    )
    disk_force_percent: int = setting(
        85,
        "the use of the disk above which the oldest messages are removed before they expire; "
        "100 never removes them",
        low=0,
        high=100,
        unit="%",
        source="rocketmq.broker.diskSpaceCleanForciblyRatio",
    )
    disk_full_percent: int = setting(
        90,
        "the use of the disk above which the broker refuses messages; 100 lets the disk fill up",
        low=0,
        high=100,
        unit="%",
        source="rocketmq.broker.diskSpaceWarningLevelRatio",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        parse_hours(self.delete_when)


def parse_hours(text: str) -> frozenset[int]:
    """Parse a list of hours such as `04;16`.

    Raises: ConfigError.
    """
    parts = [part.strip() for part in text.split(";")]
    if not all(re.fullmatch("[0-9]{1,2}", part) and int(part) < 24 for part in parts):
        raise ConfigError(f"delete_when is {text!r}; give hours of the day, as '04' or '04;16'")
    return frozenset(map(int, parts))


class RetentionFact(NamedTuple):
    """A fact for the operator; `warning` if the operator may have to act."""

    text: str
    warning: bool = False


class Retention:
    """Removes a store's expired messages.

    Args:
        config: the settings of expiry.
        store: the loaded store.
    """

    def __init__(self, config: RetentionConfig, store: MessageStore) -> None:
        self.config = config
        self._store = store
        self._keeps_unasked = config.retention_hours is None and not store.is_expiring
        self._check_due_ms = 0
        # Whether an operator has asked for the removal of expired messages now.
        self._is_asked = False
        self._runs = False
        self._failed: ExpiryWork | None = None

    @property
    def retention_hours(self) -> int:
        """How many hours messages are kept at least; 0 for no limit."""
        hours = self.config.retention_hours
        if hours is None:
            return 0 if self._keeps_unasked else RESERVED_HOURS
        return hours

    def ask(self) -> None:
        """Ask for the removal of expired messages at any hour."""
        self._is_asked = True
        self._check_due_ms = 0

    def work(
        self, *, now_ms: int, timestamp_ms: int
    ) -> tuple[ExpiryWork | None, list[RetentionFact]]:
        """Return the files to remove, if a check is due."""
        if self._runs or now_ms < self._check_due_ms:
            return None, []
        self._check_due_ms = now_ms + CHECK_INTERVAL_MS
        facts: list[RetentionFact] = []
        try:
            percent = self._store.disk_space().used_percent
            facts += self._note_room(percent)
            work = self._failed or self._choose(percent, timestamp_ms)
        except OSError as error:
            facts.append(RetentionFact(f"old messages cannot be looked for: {error}", True))
            return None, facts
        self._runs = work is not None
        if self._store.expiry_waits:
            self._check_due_ms = now_ms + CHECKPOINT_WAIT_MS
        return work, facts

    def done(self, work: ExpiryWork, error: Exception | None) -> list[RetentionFact]:
        """Process the end of the work; a failed removal is tried again at the next check."""
        self._runs = False
        self._failed = None if error is None else work
        if error is not None:
            return [RetentionFact(f"old messages cannot be removed: {error}", True)]
        # More files may have expired.
        self._check_due_ms = 0
        text = f"messages up to log position {work.position} were removed: {work.reason}"
        return [RetentionFact(text)]

    def _note_room(self, percent: int) -> list[RetentionFact]:
        limit = self.config.disk_full_percent
        was_full = self._store.refusal is not None
        is_full = percent > limit
        if is_full:
            self._store.refusal = f"its disk is {percent} % full, and {limit} % are allowed"
        elif was_full:
            self._store.refusal = None
        if is_full and not was_full:
            return [
                RetentionFact(f"no message is taken: the disk is {percent} % full", warning=True)
            ]
        if was_full and not is_full:
            return [RetentionFact(f"messages are taken again: the disk is {percent} % full")]
        return []

    def _choose(self, percent: int, timestamp_ms: int) -> ExpiryWork | None:
        config, hours = self.config, self.retention_hours
        if hours == 0:
            return None
        is_asked = self._is_asked
        hour = datetime.fromtimestamp(timestamp_ms / 1000).hour
        work = None
        if (
            is_asked
            or percent > config.disk_expire_percent
            or hour in parse_hours(config.delete_when)
        ):
            try:
                work = self._store.expire(
                    before_timestamp_ms=timestamp_ms - hours * HOUR_MS,
                    files_max=FILES_MAX,
                    reason=f"they are older than {hours} h",
                    timestamp_ms=timestamp_ms,
                )
            except OSError:
                # Above the second limit the oldest file goes also if its age cannot be read.
                if percent <= config.disk_force_percent:
                    raise
            # More files may have expired than one check removes.
            self._is_asked = is_asked and (work is not None or self._store.expiry_waits)
        if work is None and percent > config.disk_force_percent:
            work = self._store.expire(
                before_timestamp_ms=None,
                files_max=1,
                reason=f"the disk is {percent} % full",
                timestamp_ms=timestamp_ms,
            )
        return work
