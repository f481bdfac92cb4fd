"""The id of a transaction: the place of its half message.

A client returns the id unchanged, whatever it is. With the place in the id, the service keeps no
table of transactions: an id has no time limit, and survives a restart. Differs from RocketMQ: its
proxy keeps the places of ids for 30 s. Tests: test_server.py.
"""

from __future__ import annotations

from typing import NamedTuple

_DIGITS = 16


class TransactionId(NamedTuple):
    """The half message's place.

    Args:
        position: its position in the commit log.
        half_offset: its offset in the queue of half messages.
    """

    position: int
    half_offset: int

    def encode(self) -> str:
        """Return the id's text."""
        return f"{self.position:016X}{self.half_offset:016X}"


def decode_transaction_id(text: str) -> TransactionId:
    """Return the place in an id. Raises: ValueError."""
    if len(text) != 2 * _DIGITS:
        raise ValueError(f"{len(text)} characters, not {2 * _DIGITS}")
    return TransactionId(int(text[:_DIGITS], 16), int(text[_DIGITS:], 16))
