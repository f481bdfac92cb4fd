"""The records of the broker's journal: changes of topics, groups, queue locks, plans and modes.

A change holds the new value of a name, None for a removed name. Applying a change twice therefore
has no further effect. `FiledVersions` begins each segment: the versions of the files to which the
segment's changes are added. If a file has another version, another broker has written the file
since, and the journal's changes of its table are void. Tests: test_config_saving.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from sparrowmq.errors import StoreError
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import (
    DataVersion,
    GroupPlan,
    RequestMode,
    SubscriptionGroupConfig,
    TopicConfig,
)


class FiledVersions(Struct, frozen=True, tag="files", tag_field="what"):
    """The versions of topics.json and subscriptionGroup.json."""

    topics: DataVersion = DataVersion()
    groups: DataVersion = DataVersion()


class TopicTableChange(Struct, frozen=True, tag="topic", tag_field="what"):
    """A topic's new settings, and the version of the table that has them."""

    name: str
    config: TopicConfig | None
    version: DataVersion


class GroupTableChange(Struct, frozen=True, tag="group", tag_field="what"):
    """A consumer group's new settings, and the version of the table that has them."""

    name: str
    config: SubscriptionGroupConfig | None
    version: DataVersion


class LockChange(Struct, frozen=True, tag="lock", tag_field="what"):
    """The holder of a group's queue, None for no holder, and the rest of the lease."""

    group: str
    queue: MessageQueue
    client_id: str | None
    remaining_ms: int = 0


class PlanChange(Struct, frozen=True, tag="plan", tag_field="what"):
    """The plan that a group's members follow."""

    group: str
    plan: GroupPlan | None


class RequestModeChange(Struct, frozen=True, tag="mode", tag_field="what"):
    """How a group consumes a topic; None for the way of all groups."""

    topic: str
    group: str
    mode: RequestMode | None


Change: TypeAlias = (
    FiledVersions
    | TopicTableChange
    | GroupTableChange
    | LockChange
    | PlanChange
    | RequestModeChange
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[Change])


def encode_changes(changes: Sequence[Change]) -> bytes:
    """Return a batch of the journal."""
    return _encoder.encode(changes)


def decode_changes(batch: bytes) -> list[Change]:
    """Read a batch of the journal.

    Raises: StoreError for bytes that are not a batch of changes.
    """
    try:
        return _decoder.decode(batch)
    except msgspec.DecodeError as error:
        raise StoreError(
            f"the journal of config changes cannot be understood: {error}; was it written by a "
            "later version? If so, start that version"
        ) from error
