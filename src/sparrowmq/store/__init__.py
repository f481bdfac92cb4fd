"""The message store, in RocketMQ's on-disk format."""

from __future__ import annotations

from sparrowmq.store.config import FlushMode, StoreConfig
from sparrowmq.store.flush import FlushWork
from sparrowmq.store.message_store import MessageStore
from sparrowmq.store.recovery import RecoveryReport
from sparrowmq.store.results import Dispatched, GetResult, GetStatus, PutResult, PutStatus
from sparrowmq.store.storage import Storage, StorageFile

__all__ = [
    "Dispatched",
    "FlushMode",
    "FlushWork",
    "GetResult",
    "GetStatus",
    "MessageStore",
    "PutResult",
    "PutStatus",
    "RecoveryReport",
    "Storage",
    "StorageFile",
    "StoreConfig",
]
