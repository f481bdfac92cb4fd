from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.store.key_hash import KEY_BYTES_MAX, hash_keys, hash_text

# Surrogates alone are not a text in UTF-8.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=KEY_BYTES_MAX + 8)
ASCII = st.text(st.characters(max_codepoint=0x7F), max_size=KEY_BYTES_MAX + 8)


def java_hash(text: str) -> int:
    """Do what String.hashCode's documentation says."""
    units = text.encode("utf-16-be")
    pairs = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    return int(sum(unit * 31 ** (len(pairs) - 1 - n) for n, unit in enumerate(pairs)) % 2**32)


def test_hashes_are_those_of_java() -> None:
    # Made by Java: "".hashCode() and so on, as unsigned numbers.
    expected = {"": 0, "a": 97, "TopicTest#key-1": 0x0C2A2781, "polygenelubricants": 0x80000000}

    assert {text: hash_text(text) for text in expected} == expected


@given(st.lists(TEXTS | ASCII, max_size=20), st.integers(0, 40))
def test_many_keys_have_the_hashes_of_each(texts: list[str], times: int) -> None:
    # So many that they are hashed as a block, too.
    keys = [text.encode() for text in texts] * times

    assert [java_hash(text) for text in texts] * times == hash_keys(keys)


def test_every_length_of_key_is_hashed_right_in_a_block() -> None:
    keys = [bytes([0x7F]) * size for size in range(KEY_BYTES_MAX + 2) for _ in range(600)]

    assert [java_hash(key.decode()) for key in keys[::600]] == hash_keys(keys)[::600]
    assert [java_hash(key.decode()) for key in keys[::600]] == hash_keys(keys)[599::600]
