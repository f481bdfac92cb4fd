"""Java's string hash, tag codes, index keys, and the parsing of tag expressions. Pure.

A consume queue keeps 64 bits per message for the tag: Java's hash code of the tag. Brokers filter
by the hash code, consumers compare the tag itself.

Source: RocketMQ 4.9.3 common/filter/FilterAPI.java, store/index/IndexFile.java,
java.lang.String.hashCode.
"""

from __future__ import annotations

import re

from sparrowmq.errors import LocalProtocolError, UsageError
from sparrowmq.model import MessageSelector
from sparrowmq.protocol.bodies import SubscriptionData
from sparrowmq.protocol.sql92 import parse_condition

SUBSCRIBE_ALL = "*"
TAG_SEPARATOR = "||"
EXPRESSION_TYPE_TAG = "TAG"
EXPRESSION_TYPE_SQL92 = "SQL92"


# Characters of conditions, wildcards and lists that tags almost never have.
_NOT_IN_TAGS = re.compile(r"[\s<>=!'\"()|&,;*]")


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`: 31·h + unit over UTF-16 units, wrapped to 32 bits."""
    code = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            code = (31 * code + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(units), 2):
            code = (31 * code + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return code - 0x1_0000_0000 if code & 0x8000_0000 else code


def tags_code(tag: str | None) -> int:
    """Return the tags code of a consume queue entry; 0 for no tag."""
    return java_hash(tag) if tag else 0


def parse_subscription(
    topic: str,
    expression: str | None,
    *,
    sub_version: int,
    expression_type: str | None = EXPRESSION_TYPE_TAG,
) -> SubscriptionData:
    """Parse `*`, `TagA || TagB` or, unchanged, an expression of another type.

    Args:
        expression: None and "" mean `*`; ` * ` with blanks names a tag.
        sub_version: wall-clock milliseconds, by which brokers order subscriptions.

    Raises: LocalProtocolError if the expression is `||` alone.
    """
    kind = expression_type or EXPRESSION_TYPE_TAG
    if not expression or expression == SUBSCRIBE_ALL:
        return SubscriptionData(topic=topic, sub_string=SUBSCRIBE_ALL, sub_version=sub_version)
    if kind != EXPRESSION_TYPE_TAG:
        return SubscriptionData(
            topic=topic, sub_string=expression, sub_version=sub_version, expression_type=kind
        )
    parts = expression.split(TAG_SEPARATOR)
    if not any(parts):
        raise LocalProtocolError(f"the tag expression {expression!r} of {topic} names no tag")
    tags = frozenset(_trim(part) for part in parts) - {""}
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        sub_version=sub_version,
        tags_set=tags,
        code_set=frozenset(java_hash(tag) for tag in tags),
    )


def parse_selection(
    topic: str, selection: str | MessageSelector, *, sub_version: int
) -> SubscriptionData:
    """Parse a user's tag expression or selector for a topic.

    Raises: UsageError for a wrong expression. Conditions are checked here, since RocketMQ's brokers
        report a wrong condition only in their logs.
    """
    if isinstance(selection, str):
        odd = find_odd_tag(selection)
        if odd is not None:
            raise UsageError(
                f"the expression {selection!r} of topic {topic} would name a tag {odd!r}, which no "
                f"message has: give a condition on properties as MessageSelector.by_sql(...), tags "
                f"as 'TagA || TagB', all messages as '*'; and if a tag is really called so, "
                f"MessageSelector.by_tag(...)"
            )
        selection = MessageSelector.by_tag(selection)
    if not isinstance(selection, MessageSelector):
        raise UsageError(
            f"the expression of topic {topic} is {selection!r}; give '*', tags such as "
            f"'TagA || TagB', or a MessageSelector"
        )
    expression, kind = selection
    try:
        if kind == EXPRESSION_TYPE_SQL92:
            parse_condition(expression)
        return parse_subscription(topic, expression, sub_version=sub_version, expression_type=kind)
    except LocalProtocolError as error:
        raise UsageError(str(error)) from None


def find_odd_tag(expression: str) -> str | None:
    """Return the first tag of an expression that is surely no tag, None if all may be tags.

    RocketMQ accepts any text as tags. A condition, a wildcard or a list with commas then names a
    tag that no message has: nothing is delivered, every offset is committed, and nothing reports
    the mistake.
    """
    if expression == SUBSCRIBE_ALL:
        return None
    tags = map(_trim, expression.split(TAG_SEPARATOR))
    return next((tag for tag in tags if _NOT_IN_TAGS.search(tag)), None)


def _trim(text: str) -> str:
    # Java's String.trim removes the characters up to U+0020, and no other blanks.
    return text.strip("".join(map(chr, range(0x21))))
