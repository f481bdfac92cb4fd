"""Names of a namespace: there and back, and what is never touched."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sparrowmq.errors import ConfigError
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import SYSTEM_TOPICS, dlq_topic, is_system_topic, retry_topic
from sparrowmq.model.namespace import NO_NAMESPACE, Namespace, check_namespace

LETTERS = st.sampled_from("abzAZ019_-|")
NAMES = st.text(LETTERS, min_size=1, max_size=20)
NAMESPACES = st.builds(Namespace, NAMES)
# Groups and topics as users write them, some of which look like another namespace's.
RESOURCES = st.text(st.one_of(LETTERS, st.just("%")), min_size=1, max_size=30)


def is_own(name: str) -> bool:
    """Whether RocketMQ keeps a name for itself, or prefixes names by it."""
    return is_system_topic(name) or name.startswith(("CID_RMQ_SYS_", "%RETRY%", "%DLQ%"))


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("orders", "ns%orders"),
        ("%RETRY%GID", "%RETRY%ns%GID"),
        ("%DLQ%GID", "%DLQ%ns%GID"),
        ("ns%orders", "ns%orders"),
        ("%RETRY%ns%GID", "%RETRY%ns%GID"),
        ("other%orders", "ns%other%orders"),
        ("nsorders", "ns%nsorders"),
        ("CID_RMQ_SYS_TRACE", "CID_RMQ_SYS_TRACE"),
        ("rmq_sys_x", "rmq_sys_x"),
        ("", ""),
        *((topic, topic) for topic in sorted(SYSTEM_TOPICS)),
    ],
)
def test_names_on_the_wire_are_javas(resource: str, expected: str) -> None:
    assert Namespace("ns").wrap(resource) == expected


@given(NAMESPACES, RESOURCES)
def test_plain_name_comes_back(namespace: Namespace, name: str) -> None:
    assume(not is_own(name) and not name.startswith(f"{namespace.name}%"))

    assert name == namespace.unwrap(namespace.wrap(name))
    assert namespace.wrap(name) == f"{namespace.name}%{name}"


@given(NAMESPACES, RESOURCES)
def test_wrapping_twice_is_wrapping_once(namespace: Namespace, name: str) -> None:
    assert namespace.wrap(name) == namespace.wrap(namespace.wrap(name))


@given(NAMESPACES, NAMES)
def test_topics_of_a_group_are_those_of_its_name_on_the_wire(
    namespace: Namespace, group: str
) -> None:
    assume(not is_own(group))

    assert retry_topic(namespace.wrap(group)) == namespace.wrap(retry_topic(group))
    assert dlq_topic(namespace.wrap(group)) == namespace.wrap(dlq_topic(group))


@given(RESOURCES)
def test_no_namespace_changes_nothing(name: str) -> None:
    queue = MessageQueue(name, "b", 1)

    assert name == NO_NAMESPACE.wrap(name) == NO_NAMESPACE.unwrap(name)
    assert queue is NO_NAMESPACE.wrap_queue(queue) is NO_NAMESPACE.unwrap_queue(queue)


@given(NAMESPACES, NAMESPACES, NAMES)
def test_names_of_another_namespace_stay_as_they_are(
    ours: Namespace, other: Namespace, name: str
) -> None:
    assume(ours != other and not is_own(name))
    wrapped = other.wrap(name)

    assert wrapped == ours.unwrap(wrapped)


def test_namespace_is_checked() -> None:
    assert NO_NAMESPACE == check_namespace(None) == check_namespace("")
    assert check_namespace("MQ_INST-1") == Namespace("MQ_INST-1")
    for bad in ("a%b", "a b", "ä"):
        with pytest.raises(ConfigError, match="namespace"):
            check_namespace(bad)
