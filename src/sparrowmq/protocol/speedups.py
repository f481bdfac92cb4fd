"""Ten functions over bytes that an optional extension in C provides.

The extension is a distribution of its own, `sparrowmq-speedups` (`speedups/` in the repository),
which the extra `speedups` installs.
Seven functions are for the broker, three are for clients. Each function has a
twin in Python with the same arguments and results (tests/store/test_speedups.py,
tests/protocol). docs/decisions/speedups-in-c.md has the gains and the attempts that
failed.

Tests: store/test_speedups.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from sparrowmq.model import MessageExt
    from sparrowmq.protocol.command import RemotingCommand

# The extension's number of this interface; another number takes or returns other values. The
# version that the extra `speedups` names begins with it.
INTERFACE = 10


class Speedups(Protocol):
    """The extension's functions; None is the result for input that Python's code must judge."""

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
        """Write the records of a batch, each with its checksum, and the entries of their queue.

        Args:
            body: the request's body.
            head: the head of a record; the fields that differ between messages are zero.
            topic_field: the topic, preceded by its length.
            added: properties that each message gets, with a separator at their end.
            position: the position of the first record in the log.
            queue_offset: the queue offset of the first message.
            count_max: the most messages.
            properties_bytes_max: the most bytes of one message's properties, without the checksum.

        Returns: the records, the entries, the positions of the records, and the tags codes.
        """
        ...

    def encode_record(
        self,
        body: bytes,
        properties: str,
        topic_field: bytes,
        born_host: bytes,
        store_host: bytes,
        queue_id: int,
        flag: int,
        queue_offset: int,
        position: int,
        sys_flag: int,
        born_timestamp_ms: int,
        store_timestamp_ms: int,
        reconsume_times: int,
        properties_bytes_max: int,
        /,
    ) -> tuple[bytes, int] | None:
        """Write the record of a message, with its checksum.

        Args:
            topic_field: the topic, preceded by its length.
            properties_bytes_max: the most bytes of the properties, without the checksum.

        Returns: the record and its tags code.
        """
        ...

    def collect_keys(
        self, chunk: bytes, position: int, /
    ) -> tuple[int, bytes, bytes, bytes] | None:
        """Find the keys of the whole records at the beginning of a chunk of the log.

        Args:
            position: the position of the chunk in the log.

        Returns: the end of the last record in the chunk; and for each key its `slot_hash`, its
            record's position and its record's store time, as numbers of 4, 8 and 8 bytes in this
            machine's byte order.
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
        """Write entries of an index file, and write their numbers, from `number` on, into slots.

        Args:
            slots: the number of each slot's latest entry, 0 for a slot without entries.
            pages: a byte for each page of `page_slots` slots, set to 1 if one of its slots changes.
            hashes: 4 bytes each; positions and times have 8 bytes each.
            begin_ms: the time from which entries count; if the first entry has number 1, the
                others count from the first entry's time.

        Returns: the entries, and the number of slots that had no entry before.
        """
        ...

    def check_records(
        self,
        buffer: bytes,
        at: int,
        position: int,
        topics: dict[bytes, str],
        record_type: type[tuple[object, ...]],
        records: list[Any],
        /,
    ) -> int:
        """Add the fields of consecutive usual and valid records, from `at` on, to a list.

        Args:
            position: the position of the first record in the log.
            topics: the topics that a usual record may have.
            record_type: `CheckedRecord`.

        Returns: the position of the first record that is unusual or not valid, or the end.
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
        """Add the messages of consecutive usual records, from `at` on, to a list.

        Args:
            unusual_bits: bits of the sys flag; a record with one of them is unusual.

        Returns: the position of the first unusual record, or the end.
        """
        ...

    def take_answers(
        self,
        buffer: bytes,
        at: int,
        literals: tuple[bytes, ...],
        kinds: bytes,
        has_body: bool,
        tokens: dict[int, Hashable],
        opaques: dict[Hashable, int],
        answer_type: Callable[..., object],
        event_type: Callable[..., object],
        events: list[Any],
        /,
    ) -> int:
        """Take consecutive answers of the usual form, from `at` on, to one kind of request.

        Args:
            literals: the parts of the form around its values.
            kinds: the kinds and places of these values (`answer_form.AnswerForm`).
            has_body: whether the answers have bodies.
            tokens: those of the requests of this kind under way, by opaque; the taken ones leave
                both tables.
            answer_type: called with the values and, if there are bodies, the body.
            event_type: called with a request's token and its answer, for `events`.

        Returns: the position behind the last taken answer.
        """
        ...

    def take_request(
        self,
        buffer: bytes,
        at: int,
        frame_bytes_max: int,
        literals: tuple[bytes, ...],
        kinds: bytes,
        names: tuple[str, ...],
        copy_command: Callable[[], RemotingCommand],
        copy_header: Callable[[], object],
        /,
    ) -> tuple[RemotingCommand, int] | None:
        """Read the send or pull in the frame at `at`, if only its values differ from a known one's.

        Args:
            literals, kinds, names, copy_command, copy_header: `request_decoder.RequestForm`.

        Returns: the command, and the position behind its frame.
        """
        ...

    def find_run(self, entries: bytes, /) -> tuple[int, int] | None:
        """Return the position and the size of records that lie back to back in the log.

        Args:
            entries: whole entries of a queue, at least one.

        Returns: None if records lie apart, or one is missing.
        """
        ...

    def join_batch(
        self,
        rows: Sequence[tuple[object, ...]],
        body_at: int,
        flag_at: int,
        text_at: int,
        shared: bytes,
        id_size: int,
        number: int,
        body_bytes_min: int,
        body_bytes_max: int,
        properties_bytes_max: int,
        /,
    ) -> tuple[bytes, str] | None:
        """Write the body of SEND_BATCH_MESSAGE, as `record.encode_batch` does.

        Args:
            rows: a list of a tuple for each message.
            body_at, flag_at, text_at: the places of body, flag and properties in a row. With -1
                for the last, the rows must be alike but for body and flag, and share properties.
            shared: the properties of all messages, with the first one's id at their end; the last
                four digits of an id are the number of the message.
            id_size: the characters of an id.
            number: the number of the first message.

        Returns: the body, and the ids of messages that share properties as a comma list.
        """
        ...


def _find() -> tuple[Speedups | None, str]:
    """Return the extension, or what is the matter with it."""
    try:
        found = cast(Speedups, import_module("sparrowmq_speedups"))
    except ImportError:
        return None, "is not installed"
    if found.INTERFACE != INTERFACE:
        return None, f"has interface {found.INTERFACE}, and {INTERFACE} is needed"
    return found, ""


# `functions` is read at each use: tests run with and without the extension. `obstacle` says why
# there are none, "" if there are.
functions, obstacle = _find()
