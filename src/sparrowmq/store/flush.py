"""The store's only blocking work, as a value: what must reach the disk, and up to where."""

from __future__ import annotations

from dataclasses import dataclass

from sparrowmq.store.checkpoint import Checkpoint, write_checkpoint
from sparrowmq.store.message_index import IndexFlush
from sparrowmq.store.storage import Storage, StorageFile


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
        index: what of the index to sync before the checkpoint, None for nothing.
        checkpoint: what to write to the checkpoint once all that is done, None for nothing.
    """

    storage: Storage
    end_position: int
    log_files: tuple[StorageFile, ...] = ()
    queue_files: tuple[StorageFile, ...] = ()
    directories: tuple[str, ...] = ()
    index: IndexFlush | None = None
    checkpoint: Checkpoint | None = None

    def run(self) -> None:
        """Sync; blocks until the disk has everything.

        Raises: OSError if a sync fails. Unless `is_shortage`, what the disk has is unknown then,
            now and after any further sync, so the store takes no more messages. An index that
            cannot be synced is no failure: messages do without it.
        """
        for file in self.log_files:
            file.sync()
        self.storage.sync_all(self.queue_files, self.directories)
        checkpoint = self.checkpoint
        if checkpoint is not None:
            if self.index is not None:
                checkpoint = checkpoint.with_index(self.index.run())
            write_checkpoint(self.storage, checkpoint)
