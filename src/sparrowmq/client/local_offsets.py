"""The file in which a BROADCASTING consumer stores its offsets, as RocketMQ's clients do.

The file is `DIRECTORY/CLIENT_ID/GROUP/offsets.json`, and its former version `offsets.json.bak`. A
member finds its file by its client id: give it an `instance_name` that stays the same. The default
is DEFAULT, which two consumers of one group on one machine would share.

The disk has a content before the file's name leads to it: a power cut leaves the file or a former
one, and messages since then come again. Differs from RocketMQ, whose file may be empty then.

Source: LocalFileOffsetStore.java; the form is OffsetSerializeWrapper.java's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from sparrowmq.calling.durable_files import sync_names, write_synced
from sparrowmq.errors import ConfigError, RemoteProtocolError, StoreError
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import ResetOffsetBody, decode_file, encode_body


def default_directory() -> Path:
    """Return RocketMQ's default directory, `~/.rocketmq_offsets`.

    Raises: ConfigError if this user has no home, as in a container.
    """
    try:
        return Path.home() / ".rocketmq_offsets"
    except RuntimeError:
        text = "this user has no home directory; set local_offset_dir"
        raise ConfigError(text) from None


class LocalOffsets:
    """One member's file. Threads may share one.

    Args:
        client_id: the member's client id.
        group: the member's consumer group.
    """

    def __init__(self, directory: Path, client_id: str, *, group: str) -> None:
        self._path = (
            directory / client_id.replace("/", "_") / group.replace("/", "_") / "offsets.json"
        )
        self._lock = threading.Lock()
        self._offsets: dict[MessageQueue, int] = {}
        # Whether the file could not be read, and its former version stands in for it.
        self._is_damaged = False

    def load(self) -> dict[MessageQueue, int]:
        """Read the file, or its former version; {} if there is neither.

        Raises: ConfigError if a file exists but none can be read.
        """
        failure: Exception | None = None
        for path in (self._path, self._backup_path()):
            try:
                body = decode_file(ResetOffsetBody, path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, RemoteProtocolError) as error:
                failure = failure or error
                continue
            self._offsets = dict(body.offset_table)
            self._is_damaged = failure is not None
            return dict(self._offsets)
        if failure is not None:
            raise ConfigError(
                f"the offsets in {self._path} cannot be read ({failure}); remove the file to begin "
                "where `start` says"
            )
        return {}

    def put(self, queue: MessageQueue, offset: int) -> None:
        """Store an offset that is not stored yet. Raises: StoreError if that fails."""
        with self._lock:
            if self._offsets.get(queue) == offset:
                # A member commits each queue every few seconds, also where nothing comes.
                return
            offsets = {**self._offsets, queue: offset}
            new = self._path.with_suffix(".json.tmp")
            try:
                made = _make_directory(self._path.parent)
                write_synced(new, encode_body(ResetOffsetBody(offset_table=offsets), pretty=True))
                is_first = not self._path.exists()
                if not (is_first or self._is_damaged):
                    os.replace(self._path, self._backup_path())
                os.replace(new, self._path)
                if is_first:
                    for directory in (self._path.parent, *made):
                        # Whoever may make a directory there may perhaps not list the others, and
                        # Windows opens none.
                        with contextlib.suppress(PermissionError):
                            sync_names(directory)
            except OSError as error:
                raise StoreError(f"offsets cannot be stored in {self._path}: {error}") from error
            self._offsets, self._is_damaged = offsets, False

    def _backup_path(self) -> Path:
        return self._path.with_suffix(".json.bak")


def _make_directory(path: Path) -> list[Path]:
    """Make a missing directory; return the directories in which a name is new."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return [each.parent for each in missing]
