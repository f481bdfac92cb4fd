"""Reads a broker's pops, acknowledgements and changes of times, for `PopLedger`.

Tests: test_pop_mutations.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import decode_body
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import decode_header
from sparrowmq.protocol.pop_handle import (
    AckMessageRequestHeader,
    BatchAckBody,
    BatchAckResponseHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    decode_popped,
)
from sparrowmq.serving.connections import Connection
from sparrowmq.simulation.pop_ledger import Handle, MessagePlace, PopLedger

_Key: TypeAlias = tuple[Connection, int]


class PopWatch:
    """The requests of one process of a broker that wait for answers.

    Args:
        ledgers: by group.
    """

    def __init__(self, name: str, ledgers: Mapping[str, PopLedger]) -> None:
        self._name = name
        self._ledgers = ledgers
        self._pops: dict[_Key, tuple[PopLedger, PopMessageRequestHeader, int]] = {}
        self._changes: dict[_Key, tuple[PopLedger, MessagePlace]] = {}
        # Each with the number of its acknowledgement and its offset, by which answers leave it out.
        self._acks: dict[_Key, dict[tuple[int, int], tuple[PopLedger, MessagePlace]]] = {}

    def note_request(self, connection: Connection, command: RemotingCommand, now_ms: int) -> None:
        """Note a request of any kind."""
        key, fields = (connection, command.opaque), command.ext_fields
        if command.code == RequestCode.POP_MESSAGE:
            header = decode_header(PopMessageRequestHeader, fields)
            self._pops[key] = self._ledgers[header.consumer_group], header, now_ms
        elif command.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            ack = decode_header(AckMessageRequestHeader, fields)
            self._changes[key] = self._find(ack)
        elif command.code == RequestCode.ACK_MESSAGE:
            ack = decode_header(AckMessageRequestHeader, fields)
            self._acks[key] = {(0, ack.offset): self._find(ack)}
        elif command.code == RequestCode.BATCH_ACK_MESSAGE:
            self._acks[key] = {
                (number, offset): (
                    self._ledgers[each.consumer_group],
                    MessagePlace(MessageQueue(each.topic, self._name, each.queue_id), offset),
                )
                for number, each in enumerate(decode_body(BatchAckBody, command.body).acks)
                for offset in each.offsets()
            }
        for ledger, place in self._acks.get(key, {}).values():
            ledger.note_asked(place)

    def _find(self, header: AckMessageRequestHeader) -> tuple[PopLedger, MessagePlace]:
        queue = MessageQueue(header.topic, self._name, header.queue_id)
        return self._ledgers[header.consumer_group], MessagePlace(queue, header.offset)

    def note_reply(self, connection: Connection, command: RemotingCommand, wall_ms: int) -> None:
        """Note an answer of any kind, as it is written.

        Args:
            wall_ms: the lead of the broker's wall clock before the timeline.
        """
        key, is_well = (connection, command.opaque), command.code == ResponseCode.SUCCESS
        popping, changing = self._pops.pop(key, None), self._changes.pop(key, None)
        acks = self._acks.pop(key, None)
        if popping is not None and is_well:
            found = decode_header(PopMessageResponseHeader, command.ext_fields)
            name = self._name
            messages = decode_popped(command.body or b"", broker_name=name)
            popping[0].note_popped(
                [
                    (MessagePlace(each.queue, each.queue_offset), each.reconsume_times)
                    for each in messages
                ],
                Handle(found.pop_timestamp_ms, found.invisible_time_ms),
                wall_ms=wall_ms,
            )
        elif changing is not None and is_well:
            changed = decode_header(ChangeInvisibleTimeResponseHeader, command.ext_fields)
            handle = Handle(changed.pop_timestamp_ms, changed.invisible_time_ms)
            changing[0].note_hidden(changing[1], handle, wall_ms=wall_ms)
        elif acks is not None and (is_well or command.code == ResponseCode.NO_MESSAGE):
            left_out = decode_header(BatchAckResponseHeader, command.ext_fields).read()
            for number, (ledger, place) in acks.items():
                ledger.note_answered(place, is_ended=is_well and number not in left_out)
        elif acks is not None and command.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            for ledger, place in acks.values():
                ledger.note_refused(place)

    def note_closed(self, connection: Connection) -> None:
        """Forget a closed connection, which gets no answers."""
        for requests in (self._pops, self._changes, self._acks):
            for key in [key for key in requests if key[0] is connection]:
                del requests[key]

    def check(self, *, well_since_ms: int) -> None:
        """Check the pops that wait at a broker that is well since an instant."""
        for ledger, header, asked_ms in self._pops.values():
            if not header.order:
                since_ms = max(asked_ms, well_since_ms)
                ledger.check_waiting(self._name, waits_since_ms=since_ms)
