"""The table of topics: their queues and their permissions.

Source: TopicConfigManager.java, PermName.java. `config/topics.json` has its form.
Tests: test_admin.py, test_config_saving.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.config_table import ConfigTable
from sparrowmq.broker.journal_records import TopicTableChange
from sparrowmq.model.delay import DELAY_LEVELS_MS
from sparrowmq.model.names import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    BENCHMARK_TOPIC,
    CLOSED_TOPICS,
    DLQ_GROUP_TOPIC_PREFIX,
    OFFSET_MOVED_EVENT_TOPIC,
    RETRY_GROUP_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TOPIC_LENGTH_MAX,
    TRACE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    is_legal_name,
    is_system_topic,
)
from sparrowmq.protocol.bodies import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    TopicConfig,
    TopicConfigTable,
)

QUEUE_COUNT_MAX = 65_536
# TopicFilterType.java.
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


def perm_text(perm: int) -> str:
    """Return a permission as RocketMQ prints it: `RW-`."""
    return "".join(
        letter if perm & bit else "-"
        for letter, bit in (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
    )


def describe(topic: TopicConfig) -> str:
    """Return the text of TopicConfig.toString(), which error remarks contain."""
    return (
        f"TopicConfig [topicName={topic.topic_name}, readQueueNums={topic.read_queue_nums}, "
        f"writeQueueNums={topic.write_queue_nums}, perm={perm_text(topic.perm)}, "
        f"topicFilterType={topic.topic_filter_type}, topicSysFlag={topic.topic_sys_flag}, "
        f"order={'true' if topic.order else 'false'}]"
    )


def queue_ids(topic: TopicConfig) -> range:
    """Return the ids of all queues of a topic, also of those that it only reads or only writes."""
    return range(max(topic.read_queue_nums, topic.write_queue_nums))


def find_name_fault(topic: str) -> str | None:
    """Return the fault of a topic's name, in RocketMQ's words, or None."""
    if not topic.strip():
        return "The specified topic is blank."
    if not is_legal_name(topic):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(topic) > TOPIC_LENGTH_MAX:
        return "The specified topic is longer than topic max length."
    return None


class TopicConfigs(ConfigTable[TopicConfig, TopicTableChange]):
    """The table of topics."""

    def __init__(self, config: BrokerConfig) -> None:
        super().__init__(TopicTableChange)
        # Plain topics that `find_plain` has found.
        self._plain: dict[str, TopicConfig] = {}
        # Topics with changes that a crash may undo: their write has not ended well yet.
        self._unsaved: set[str] = set()
        self._system = _system_topics(config)
        # Topics with changes that are not registered yet.
        self._unregistered: dict[str, None] = {}

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(list(self._configs.values()))

    def load(self, table: TopicConfigTable) -> None:
        """Load the table of a file; later additions count as changes."""
        self._configs = {
            name: each if each.topic_name == name else structs.replace(each, topic_name=name)
            for name, each in table.topic_config_table.items()
        }
        self._version = table.data_version
        self._plain.clear()

    def replay(self, name: str, config: TopicConfig | None, version: DataVersion) -> None:
        """Apply a change from the journal."""
        super().replay(name, config, version)
        self._plain.clear()

    def add_missing(self, *, timestamp_ms: int) -> bool:
        """Add the system's topics that are missing; return whether any was."""
        missing = [topic for topic in self._system if topic.topic_name not in self._configs]
        for topic in missing:
            self.put(topic, timestamp_ms=timestamp_ms)
        return bool(missing)

    def table(self) -> TopicConfigTable:
        """Return the whole table."""
        return TopicConfigTable(topic_config_table=dict(self._configs), data_version=self._version)

    def find_plain(self, topic: str) -> TopicConfig | None:
        """Return a topic's settings if the topic is plain: sends to it need no further checks.

        A plain topic is writable, and saved. It is neither a topic that the broker itself writes to
        nor a topic of retries or dead letters. Its messages have one tag each.
        """
        found = self._plain.get(topic)
        if found is None and self.is_saved(topic):
            known = self._configs.get(topic)
            if known is not None and _is_plain(known):
                found = self._plain[topic] = known
        return found

    def is_saved(self, topic: str) -> bool:
        """Return whether the journal has all changes of a topic."""
        return topic not in self._unsaved

    def is_in_round(self, topic: str) -> bool:
        """Return whether the last round of the journal has all changes of a topic."""
        return topic not in self.unwritten

    def note_written(self, topic: str) -> None:
        """Note that the journal has a change that `take_changes` has returned."""
        if self.is_in_round(topic):
            self._unsaved.discard(topic)

    def put(self, topic: TopicConfig, *, timestamp_ms: int) -> None:
        """Add a topic or replace its settings."""
        self._configs[topic.topic_name] = topic
        self._changed(topic.topic_name, timestamp_ms)

    def is_system(self, topic: str) -> bool:
        """Return whether the topic is reserved for RocketMQ itself on this broker."""
        return is_system_topic(topic) or any(topic == t.topic_name for t in self._system)

    def system_names(self) -> list[str]:
        """Return the names reserved for RocketMQ itself on this broker, sorted."""
        return sorted(t.topic_name for t in self._system)

    def _changed(self, name: str, timestamp_ms: int) -> None:
        super()._changed(name, timestamp_ms)
        self._plain.pop(name, None)
        self._unsaved.add(name)
        self._unregistered[name] = None

    def take_unregistered(self) -> TopicConfigTable:
        """Return the topics that were made or changed since the last call."""
        names, self._unregistered = self._unregistered, {}
        found = {name: topic for name in names if (topic := self._configs.get(name)) is not None}
        return TopicConfigTable(topic_config_table=found, data_version=self._version)


def _is_plain(topic: TopicConfig) -> bool:
    return (
        bool(topic.perm & PERM_WRITE)
        and topic.topic_filter_type != "MULTI_TAG"
        and topic.topic_name not in CLOSED_TOPICS
        and not topic.topic_name.startswith((RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX))
    )


def inherit(template: TopicConfig, topic: str, *, queue_count: int) -> TopicConfig | None:
    """Return a new topic's settings from its template, None if the template forbids it."""
    if not template.perm & PERM_INHERIT:
        return None
    count = max(min(queue_count, template.write_queue_nums), 0)
    return TopicConfig(
        topic_name=topic,
        read_queue_nums=count,
        write_queue_nums=count,
        perm=template.perm & ~PERM_INHERIT,
        topic_filter_type=template.topic_filter_type,
        topic_sys_flag=0,
    )


def plain(
    topic: str, *, queue_count: int, perm: int = PERM_READ | PERM_WRITE, sys_flag: int = 0
) -> TopicConfig:
    """Return the settings of a topic with as many readable as writable queues.

    The settings of a group in a store of RocketMQ's may name more queues than a topic may have.
    """
    count = min(queue_count, QUEUE_COUNT_MAX)
    return TopicConfig(
        topic_name=topic,
        read_queue_nums=count,
        write_queue_nums=count,
        perm=perm,
        topic_sys_flag=sys_flag,
    )


def _system_topics(config: BrokerConfig) -> tuple[TopicConfig, ...]:
    everything = PERM_READ | PERM_WRITE | PERM_INHERIT
    template = (
        plain(
            AUTO_CREATE_TOPIC_KEY_TOPIC,
            queue_count=config.default_topic_queue_count,
            perm=everything,
        ),
    )
    return (
        plain(SELF_TEST_TOPIC, queue_count=1),
        *(template if config.auto_create_topics else ()),
        plain(BENCHMARK_TOPIC, queue_count=1024),
        plain(config.cluster_name, queue_count=16, perm=everything),
        plain(config.broker_name, queue_count=1, perm=everything),
        plain(OFFSET_MOVED_EVENT_TOPIC, queue_count=1),
        plain(SCHEDULE_TOPIC, queue_count=len(DELAY_LEVELS_MS)),
        plain(f"{config.cluster_name}_REPLY_TOPIC", queue_count=1),
        plain(TRACE_TOPIC, queue_count=1),
        plain(TRANS_HALF_TOPIC, queue_count=1),
        plain(TRANS_OP_HALF_TOPIC, queue_count=1),
        plain(TRANS_CHECK_MAX_TIME_TOPIC, queue_count=1),
    )
