"""The store's only blocking work, as a value: what must reach the disk, and up to where."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from sparrowmq.store.checkpoint import Checkpoint, write_checkpoint
from sparrowmq.store.storage import Storage, StorageFile

# What a process lacks for a while. It says nothing of the disk, and the work can be run again.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})


def is_shortage(error: Exception) -> bool:
    """Tell whether a flush failed for want of descriptors or memory, and not by its disk."""
    return isinstance(error, OSError) and error.errno in _SHORTAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushWork:
    """One group of writes to sync.

    `run` may be called in another thread while the store goes on; its outcome is then given to
    `MessageStore.flush_done` in the store's own thread.

    Args:
        storage: where to sync.
        end_position: the log is on the disk up to here afterwards.
        log_files: files of the log that were written to.
        queue_files: files of consume queues that were written to.
        directories: directories in which files have come or gone.
        checkpoint: what to write to the checkpoint once all that is done, None for nothing.
    """

    storage: Storage
    end_position: int
    log_files: tuple[StorageFile, ...] = ()
    queue_files: tuple[StorageFile, ...] = ()
    directories: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None

    def run(self) -> None:
        """Sync; blocks until the disk has everything.

        Raises: OSError if a sync fails. Unless `is_shortage`, what the disk has is unknown then,
            now and after any further sync, so the store takes no more messages.
        """
        for file in self.log_files:
            file.sync()
        for file in self.queue_files:
            file.sync()
        for directory in self.directories:
            self.storage.sync_directory(directory)
        if self.checkpoint is not None:
            write_checkpoint(self.storage, self.checkpoint)
