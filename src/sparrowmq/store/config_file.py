"""The broker's configuration files: after a crash a file has its old or new content, never none.

Writing: the content goes to `X.tmp` and is synced; `X` becomes `X.bak`; `X.tmp` becomes `X`; the
directory is synced. The first write makes `X.bak` too, in the same way, before `X`. Reading: `X`,
or `X.bak` if `X` is missing, empty or unreadable. If both files exist and neither is readable, the
reader raises an error and does not begin with empty content.

On a full disk the content overwrites `X.bak`, which then becomes `X.tmp`: its room is enough for a
content that has hardly grown, so a group's offsets are still written.

Where the backup was read instead of a damaged `X`, the next write keeps the backup: `X.tmp` becomes
`X` directly, and on a full disk the content overwrites the damaged `X`.

Differs from RocketMQ 4.9, which does not sync and so may find an empty file after a power cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from sparrowmq.errors import SparrowError, StoreError
from sparrowmq.store.storage import (
    Storage,
    has_no_room,
    is_lost,
    parent_directory,
    write_file,
)

T = TypeVar("T")


def write_config(storage: Storage, path: str, data: bytes, *, keeps_backup: bool = False) -> None:
    """Replace a file's content durably, in any thread, but one call per path at a time.

    Args:
        storage: where the file is.
        path: the file's path.
        data: the new content.
        keeps_backup: whether the file is damaged, so that its backup must not become a copy of it.

    Raises: OSError; the file then still has its old content.
    """
    temporary, backup = f"{path}.tmp", f"{path}.bak"
    try:
        _write_over(storage, temporary, data)
    except OSError as error:
        if not has_no_room(error) or not (storage.has(path) and storage.has(backup)):
            raise
        storage.rename(path if keeps_backup else backup, temporary)
        # Without this name on the disk, a power cut could leave both names to the one file.
        storage.sync_directory(parent_directory(path))
        _write_over(storage, temporary, data)
    if storage.has(path) and not keeps_backup:
        storage.rename(path, backup)
    elif not storage.has(backup):
        # Under its own name a file is whole from the first moment on.
        storage.rename(temporary, backup)
        write_file(storage, temporary, data)
    storage.rename(temporary, path)
    storage.sync_directory(parent_directory(path))


def _write_over(storage: Storage, path: str, data: bytes) -> None:
    """Write a file's content; what a failed write has left keeps its room."""
    if not storage.has(path):
        write_file(storage, path, data)
        return
    file = storage.open(path, pinned=True)
    try:
        if file.size < len(data):
            file.resize(len(data))
        file.write(0, data)
        if file.size > len(data):
            file.resize(len(data))
        file.sync()
    finally:
        file.close()


class ConfigContent(NamedTuple, Generic[T]):
    """The content of a config file.

    Args:
        value: the decoded content of the file or of its backup; None if neither exists.
        damage: why the backup replaces the file, None if the file is whole.
    """

    value: T | None
    damage: str | None = None


def read_config(storage: Storage, path: str, decode: Callable[[bytes], T]) -> ConfigContent[T]:
    """Read a file, or its backup if the file cannot be decoded.

    Args:
        path: the file's path.
        decode: decodes the content; raises ValueError or SparrowError for wrong content.

    Raises: StoreError if a file exists, but neither it nor its backup can be decoded; OSError, but
        for sectors that the disk has lost.
    """
    problems: list[str] = []
    for candidate in (path, f"{path}.bak"):
        try:
            data = _read_file(storage, candidate)
        except OSError as error:
            if not is_lost(error):
                raise
            problems.append(f"{candidate} cannot be read: {error.strerror}")
            continue
        if data is None:
            continue
        if not data.strip(b"\0 \t\r\n"):
            problems.append(f"{candidate} is empty")
            continue
        try:
            value = decode(data)
        except (ValueError, SparrowError) as error:
            problems.append(f"{candidate} cannot be understood: {error}")
        else:
            return ConfigContent(value, _describe(problems, candidate))
    if problems:
        raise StoreError(f"{'; '.join(problems)}; repair one of the files or remove both")
    return ConfigContent(None)


def _describe(problems: Sequence[str], candidate: str) -> str | None:
    if not problems:
        return None
    return f"{'; '.join(problems)}: what {candidate} says, an older state, holds instead"


def _read_file(storage: Storage, path: str) -> bytes | None:
    if not storage.has(path):
        return None
    file = storage.open(path, pinned=True)
    try:
        return file.read(0, file.size)
    finally:
        file.close()
