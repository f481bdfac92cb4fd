"""Bytes of a connection that are damaged and cut, for what must read them alike."""

from __future__ import annotations

from hypothesis import strategies as st

# The places of bytes, and what stands there instead.
DAMAGE = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=2)


def harm(whole: bytes, damage: list[tuple[int, int]], cut: int) -> bytes:
    """Return bytes with others in some places, and up to six fewer at the end."""
    data = bytearray(whole)
    for at, value in damage:
        if data:
            data[at % len(data)] = value
    return bytes(data[: len(data) - cut % 7])
