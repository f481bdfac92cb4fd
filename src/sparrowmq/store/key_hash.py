"""Java's `String.hashCode` of many texts at once; an index file finds its slots by these hashes.

A text's hash is the value of its characters as digits of base 31, modulo 2^32. In pure Python
each character costs a step. Here a block of keys becomes one large integer, in which every key has
a field of equal width. One multiplication combines neighbouring parts of all fields: 8 characters
take three steps, 64 take six, for any number of keys. A key of 32 characters costs about a quarter
of a step for each character (benchmarks/broker.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

_BLOCK_KEYS = 512
# Fewer keys are hashed one by one: a nearly empty block costs as much as a full one.
_BLOCK_KEYS_MIN = 64
# Longer keys are hashed one by one.
KEY_BYTES_MAX = 128
_MASK = 0xFFFFFFFF
# 31 to the power of each index, modulo 2^32.
POWERS = tuple(pow(31, exponent, 1 << 32) for exponent in range(KEY_BYTES_MAX + 1))
# The width of the field for a key, by the key's length: a power of two.
_WIDTHS = tuple(max(8, 1 << (size - 1).bit_length()) for size in range(1, KEY_BYTES_MAX + 1))
_WIDTH_OF = (8, *_WIDTHS)


def hash_text(text: str) -> int:
    """Return `String.hashCode` of one text, as an unsigned number of 32 bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (value * 31 + (units[at] << 8 | units[at + 1])) & _MASK
    return value


def hash_keys(keys: Sequence[bytes]) -> list[int]:
    """Return `String.hashCode` of each key, as an unsigned number of 32 bits.

    Args:
        keys: texts in UTF-8.
    """
    hashes = [0] * len(keys)
    by_width: dict[int, list[int]] = {}
    for at, key in enumerate(keys):
        if len(key) <= KEY_BYTES_MAX and key.isascii():
            width = _WIDTH_OF[len(key)]
            if width in by_width:
                by_width[width].append(at)
            else:
                by_width[width] = [at]
        else:
            hashes[at] = hash_text(key.decode("utf-8", "replace"))
    for width, places in by_width.items():
        for begin in range(0, len(places), _BLOCK_KEYS):
            block = places[begin : begin + _BLOCK_KEYS]
            if len(block) < _BLOCK_KEYS_MIN:
                for at in block:
                    hashes[at] = hash_text(keys[at].decode())
                continue
            fields = _hash_block([keys[at] for at in block], width)
            for at, value in zip(block, fields, strict=False):
                hashes[at] = value
    return hashes


def _hash_block(keys: list[bytes], width: int) -> tuple[int, ...]:
    """Return the hashes of at most one block of ASCII keys, none longer than `width`."""
    # Zeros before a text do not change its hash.
    data = b"".join([key.rjust(width, b"\0") for key in keys])
    steps, layout = _plan(width)
    value = int.from_bytes(data.ljust(width * _BLOCK_KEYS, b"\0"), "big")
    for shift, factor, mask in steps:
        value = (value >> shift & mask) * factor + (value & mask)
    return layout.unpack(value.to_bytes(width * _BLOCK_KEYS, "big"))


_Plan = tuple[list[tuple[int, int, int]], Struct]
_PLANS: dict[int, _Plan] = {}


def _plan(width: int) -> _Plan:
    """Return the steps for fields of a width: each step's shift, its factor and its mask.

    A part of 1, 2 or 4 bytes has room for the hash of as many characters: 127 times the sum of 31's
    first four powers has 22 bits. Of longer parts the lowest 4 bytes are kept.
    """
    found = _PLANS.get(width)
    if found is None:
        steps = []
        part = 1
        while part < width:
            kept = min(part, 4)
            mask = (b"\0" * (2 * part - kept) + b"\xff" * kept) * (
                width * _BLOCK_KEYS // (2 * part)
            )
            steps.append((8 * part, POWERS[part], int.from_bytes(mask, "big")))
            part *= 2
        layout = Struct(">" + f"{width - 4}xI" * _BLOCK_KEYS)
        found = _PLANS[width] = (steps, layout)
    return found
