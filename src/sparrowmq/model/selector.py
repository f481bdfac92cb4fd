"""A consumer's filter of a topic's messages. Pure.

Source: MessageSelector.java, ExpressionType.java. Tests: client/test_selectors.py.
"""

from __future__ import annotations

from typing import NamedTuple

from sparrowmq.errors import UsageError


class MessageSelector(NamedTuple):
    """A filter that the broker applies; made by `by_tag` or `by_sql`."""

    expression: str
    expression_type: str

    @classmethod
    def by_tag(cls, expression: str) -> MessageSelector:
        """Select messages with one of these tags: `TagA || TagB`, or `*` for all.

        The tags may have any characters; a plain text with unusual characters is refused.
        """
        return cls(_checked("tags", expression), "TAG")

    @classmethod
    def by_sql(cls, condition: str) -> MessageSelector:
        """Select messages whose properties fulfil a condition: `price > 3 AND region = 'eu'`.

        Apache's brokers need `enablePropertyFilter=true` for conditions.
        """
        return cls(_checked("condition", condition), "SQL92")


def _checked(noun: str, text: str) -> str:
    if not isinstance(text, str):
        raise UsageError(f"the {noun} of a selector is {text!r}; give a text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the {noun} of a selector is {text!r}, which UTF-8 cannot encode"
        ) from None
    return text
