"""Namespaces: a prefix that separates the topics and groups of users.

On the wire, the topic `orders` of namespace `ns` is `ns%orders`. The retry and dead letter topics
of a group are `%RETRY%ns%GID` and `%DLQ%ns%GID`. RocketMQ's own names have no namespace. Users of a
namespace see plain names only.
Source: NamespaceUtil.java.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from sparrowmq.errors import ConfigError
from sparrowmq.model.message import MessageExt
from sparrowmq.model.names import (
    DLQ_GROUP_TOPIC_PREFIX,
    REPLY_TOPIC_POSTFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    is_system_topic,
)
from sparrowmq.model.queue import MessageQueue

_SEPARATOR = "%"
_PREFIXES = (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)
# MixAll.CID_RMQ_SYS_PREFIX.
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
_NAME = re.compile(r"[|a-zA-Z0-9_-]*")


class Namespace(NamedTuple):
    """A namespace; "" means none and changes no name."""

    name: str = ""

    def wrap(self, resource: str) -> str:
        """Return a topic's or group's name on the wire; a name on the wire stays."""
        if not self.name or not isinstance(resource, str) or not resource:
            # The checks of names report a value that is not a name.
            return resource
        if _is_system_resource(resource):
            return resource
        prefix, rest = _split(resource)
        if rest.startswith(self.name + _SEPARATOR):
            return resource
        return f"{prefix}{self.name}{_SEPARATOR}{rest}"

    def unwrap(self, resource: str) -> str:
        """Return the plain name of a topic or group of this namespace; other names stay."""
        if not self.name:
            return resource
        prefix, rest = _split(resource)
        return prefix + rest.removeprefix(self.name + _SEPARATOR)

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue with its topic's name on the wire."""
        return queue._replace(topic=self.wrap(queue.topic)) if self.name else queue

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue with its topic's plain name."""
        return queue._replace(topic=self.unwrap(queue.topic)) if self.name else queue

    def unwrap_messages(self, messages: Sequence[MessageExt]) -> list[MessageExt]:
        """Return messages with their topic's plain name."""
        if not self.name:
            return list(messages)
        return [msgspec.structs.replace(each, topic=self.unwrap(each.topic)) for each in messages]


NO_NAMESPACE = Namespace()


def check_namespace(name: str | None) -> Namespace:
    """Return the namespace of a user's setting; None and "" mean no namespace.

    Raises: ConfigError for '%' and for a character that no name may have.
    """
    if not name:
        return NO_NAMESPACE
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"the namespace {name!r} has characters other than letters, digits, '|', '_' and '-'"
        )
    return Namespace(name)


def _is_system_resource(resource: str) -> bool:
    return (
        is_system_topic(resource)
        or resource.endswith(REPLY_TOPIC_POSTFIX)
        or resource.startswith(_SYSTEM_GROUP_PREFIX)
    )


def _split(resource: str) -> tuple[str, str]:
    for prefix in _PREFIXES:
        if resource.startswith(prefix):
            return prefix, resource[len(prefix) :]
    return "", resource
