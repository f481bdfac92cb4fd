"""Four functions over bytes that an extension in C may do, if it is installed.

The extension is a distribution of its own, `sparrowmq-speedups` (`speedups/` in the repository).
Three are the store's, one is for who reads the answers to pulls. Each is there in Python too, and
gives and takes the same with and without (tests/store/test_speedups.py,
tests/protocol/test_record.py). What they gain, and what else was tried:
docs/decisions/speedups-in-c.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from sparrowmq.model import MessageExt

# The number that the extension must have: another one takes or returns something else.
_INTERFACE = 3


class Speedups(Protocol):
    """What the extension has. None stands for input that only Python's code takes, or refuses."""

    INTERFACE: int

    def encode_batch(
        self,
        body: bytes,
        head: bytes,
        topic_field: bytes,
        added: bytes,
        position: int,
        queue_offset: int,
        count_max: int,
        properties_bytes_max: int,
        /,
    ) -> tuple[bytes, bytes, tuple[int, ...], set[int]] | None:
        """Lay out the records of a batch, each with its checksum, and their queue's entries.

        Args:
            body: of the request.
            head: a record's, in which what differs from message to message is zero.
            topic_field: the topic with its length before it.
            added: properties that each message gets, with a separator at their end.
            position: where the first record begins in the log.
            queue_offset: of the first message.
            count_max: the most messages.
            properties_bytes_max: the most bytes of one message's properties, without the checksum.

        Returns: the records, the entries, where the records begin, and the tags codes.
        """
        ...

    def collect_keys(
        self, chunk: bytes, position: int, skip_position: int, /
    ) -> tuple[int, bytes, bytes, bytes] | None:
        """Find the keys of the whole records at the beginning of a chunk of the log.

        Args:
            position: where the chunk stands in the log.
            skip_position: of a record whose keys are left out.

        Returns: where in the chunk the last record ends; and for each key its `slot_hash`, the
            position of its record and that one's store time, as numbers of this machine of 4,
            8 and 8 bytes.
        """
        ...

    def add_entries(
        self,
        slots: array[int],
        pages: bytearray,
        page_slots: int,
        hashes: array[int] | memoryview[int],
        positions: array[int] | memoryview[int],
        timestamps_ms: array[int] | memoryview[int],
        begin_ms: int,
        number: int,
        /,
    ) -> tuple[bytes, int]:
        """Write entries of an index file, and their numbers, from `number` on, into its slots.

        Args:
            slots: each the number of its latest entry, 0 without any.
            pages: set to 1 for each page, of `page_slots` slots, with a slot that changes.
            hashes: of 4 bytes each; positions and times have 8.
            begin_ms: the time from which entries count; if the first has number 1, the others
                count from that one's time.

        Returns: the entries, and how many slots had none before.
        """
        ...

    def decode_messages(
        self,
        buffer: bytes,
        at: int,
        messages: list[MessageExt],
        message_type: type[MessageExt],
        properties_type: Callable[[bytes], Mapping[str, str]],
        broker_name: str,
        unusual_bits: int,
        /,
    ) -> int:
        """Add the messages of usual records, from `at` on, to a list.

        Args:
            unusual_bits: of the sys flag; a record with one of them is not usual.

        Returns: where the first record stands that is not, or the end.
        """
        ...


def _find() -> Speedups | None:
    try:
        found = cast(Speedups, import_module("sparrowmq_speedups"))
    except ImportError:
        return None
    return found if found.INTERFACE == _INTERFACE else None


# Read at each use: tests run with and without them.
functions = _find()
