"""The store's only blocking work, as a value: the files to sync, and the position reached.

Tests: test_faults.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sparrowmq.store.checkpoint import Checkpoint, write_checkpoint
from sparrowmq.store.message_index import IndexFlush
from sparrowmq.store.storage import Storage, StorageFile, has_no_room


@dataclass(slots=True, kw_only=True)
class FlushWork:
    """One group of writes to sync.

    `run` may be called in another thread while the store goes on. The caller then passes its
    outcome to `MessageStore.flush_done` in the store's own thread.

    Args:
        end_position: the position up to which the log is on the disk afterwards.
        log_files: the log's files that were written to.
        queue_files: the consume queues' files that were written to.
        directories: directories in which files were created or removed.
        index: the part of the index to sync before the checkpoint, None for none.
        checkpoint: the checkpoint to write after all syncs, None for none.

    Attributes:
        checkpoint_error: the error of a disk without room for the checkpoint, None without it.
    """

    storage: Storage
    end_position: int
    log_files: tuple[StorageFile, ...] = ()
    queue_files: tuple[StorageFile, ...] = ()
    directories: tuple[str, ...] = ()
    index: IndexFlush | None = None
    checkpoint: Checkpoint | None = None
    checkpoint_error: OSError | None = field(default=None, init=False)

    def run(self) -> None:
        """Sync; block until the disk has all files.

        Raises: OSError if a sync fails. Unless `is_shortage`, the content of the disk is then
            unknown, even after a further sync, so the store takes no more messages. An index that
            cannot be synced, or a checkpoint without room on the disk, is not a failure, since
            messages do not depend on them: the checkpoint before it holds.
        """
        for file in self.log_files:
            file.sync()
        self.storage.sync_all(self.queue_files, self.directories)
        checkpoint = self.checkpoint
        if checkpoint is not None:
            if self.index is not None:
                checkpoint = checkpoint.with_index(self.index.run())
            try:
                write_checkpoint(self.storage, checkpoint)
            except OSError as error:
                if not has_no_room(error):
                    raise
                self.checkpoint_error = error
