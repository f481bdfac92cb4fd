"""Names of topics and groups: the rules, the prefixes, and RocketMQ's own names."""

from __future__ import annotations

import re

from sparrowmq.errors import ConfigError

# Validators.java: VALID_PATTERN_STR, TOPIC_MAX_LENGTH, CHARACTER_MAX_LENGTH.
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
TOPIC_LENGTH_MAX = 127
GROUP_LENGTH_MAX = 255
# TopicValidator.GROUP_MAX_LENGTH of 5.x, for consumer groups: the names of the group's retry and
# dead letter topics must not exceed a topic's length.
CONSUMER_GROUP_LENGTH_MAX = 120

# MixAll.java.
RETRY_GROUP_TOPIC_PREFIX = "%RETRY%"
DLQ_GROUP_TOPIC_PREFIX = "%DLQ%"
DEFAULT_PRODUCER_GROUP = "DEFAULT_PRODUCER"
# The producer group of `sparrowmq send`: brokers note the sends of operators.
COMMAND_PRODUCER_GROUP = "SPARROWMQ_CLI"
DEFAULT_CONSUMER_GROUP = "DEFAULT_CONSUMER"
CLIENT_INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"

# TopicValidator.java.
AUTO_CREATE_TOPIC_KEY_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
TRANS_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TRANS_OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT_TOPIC = "OFFSET_MOVED_EVENT"
# MixAll.REPLY_TOPIC_POSTFIX: each cluster has one such topic.
REPLY_TOPIC_POSTFIX = "_REPLY_TOPIC"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
# TimerMessageStore.TIMER_TOPIC of 5.x.
TIMER_TOPIC = "rmq_sys_wheel_timer"
# The changes of invisible messages (broker/pop_changes.py); RocketMQ has no topic of this name.
POP_LOG_TOPIC = "rmq_sys_sparrowmq_pop_log"

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC_KEY_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRACE_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT_TOPIC,
    }
)
# MixAll.TOOLS_CONSUMER_GROUP: every broker has it, also a broker that creates no groups itself.
TOOLS_GROUP = "TOOLS_CONSUMER"
# MixAll.java: groups that every broker has, and that users do not consume with.
SYSTEM_GROUPS = frozenset({TOOLS_GROUP, "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP"})
# MixAll.CID_RMQ_SYS_PREFIX, and the prefix of the ONS groups.
SYSTEM_GROUP_PREFIXES = ("CID_RMQ_SYS_", "CID_ONS")
# TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET of 4.9: clients refuse these topics.
NOT_ALLOWED_SEND_TOPICS = frozenset({SCHEDULE_TOPIC})
# Topics in which a broker keeps messages until they may be consumed, and its own records.
WAITING_TOPICS = NOT_ALLOWED_SEND_TOPICS | {
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TIMER_TOPIC,
    POP_LOG_TOPIC,
}
# The same set of 5.x: brokers refuse these topics, where a client's message could pass for the
# broker's own.
CLOSED_TOPICS = WAITING_TOPICS | {
    TRANS_CHECK_MAX_TIME_TOPIC,
    SELF_TEST_TOPIC,
    OFFSET_MOVED_EVENT_TOPIC,
}


def is_system_topic(topic: str) -> bool:
    """Return whether a topic is one of RocketMQ's own."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    """Return whether a consumer group is one of RocketMQ's own."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIXES)


def is_legal_name(name: str) -> bool:
    """Return whether a name is not empty and has only characters of topics and groups."""
    return _NAME.fullmatch(name) is not None


def check_topic(topic: str) -> str:
    """Return the topic's name unchanged.

    Raises: ConfigError if the name is blank, too long, or has a character that RocketMQ refuses.
    """
    return _check(topic, "topic", TOPIC_LENGTH_MAX)


def check_new_topic(topic: str) -> str:
    """Return the name of a topic to be created, unchanged.

    `%DLQ%GROUP` is a name like others: Spark's jobs write there before a broker does.

    Raises: ConfigError as `check_topic`, and if RocketMQ itself uses the name.
    """
    check_topic(topic)
    if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        raise ConfigError(
            f"the topic name {topic!r} is reserved: brokers make the topic %RETRY%GROUP for a "
            "group's retries themselves; choose a name without %RETRY%"
        )
    if is_system_topic(topic):
        raise ConfigError(
            f"the topic name {topic!r} is reserved: it is one of RocketMQ's own topics, which "
            "brokers make themselves; choose another name"
        )
    return topic


def check_group(group: str) -> str:
    """Return the group's name unchanged.

    Raises: ConfigError if the name is blank, too long, or has a character that RocketMQ refuses.
    """
    return _check(group, "group", GROUP_LENGTH_MAX)


def check_consumer_group(group: str) -> str:
    """Return the consumer group's name unchanged. Raises: ConfigError as `check_group`.

    Differs from RocketMQ: its clients accept 255 characters, and brokers refuse a name above the
    limit at each heartbeat.
    """
    return _check(group, "group", CONSUMER_GROUP_LENGTH_MAX)


def _check(name: str, noun: str, length_max: int) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"the {noun} is {name!r}; it must be a text, the {noun}'s name")
    if not name or not name.strip():
        raise ConfigError(f"the {noun} name is blank")
    if len(name) > length_max:
        raise ConfigError(
            f"the {noun} name {name[:40]!r}... has {len(name)} characters; "
            f"the limit is {length_max}"
        )
    if not is_legal_name(name):
        raise ConfigError(
            f"the {noun} name {name!r} has characters other than letters, digits, '%', '|', "
            f"'_' and '-'"
        )
    return name


def retry_topic(group: str) -> str:
    """Return the topic of a group's failed messages, which are delivered again."""
    return RETRY_GROUP_TOPIC_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return DLQ_GROUP_TOPIC_PREFIX + group


assert len(retry_topic("")) + CONSUMER_GROUP_LENGTH_MAX <= TOPIC_LENGTH_MAX
