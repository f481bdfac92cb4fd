"""Generates a cluster of any size for the job `balance`; equal numbers give equal clusters.

A group has 1 to 8 members and a given number of topics. A topic has 4, 8 or 16 queues on one of two
brokers or on both. One group in fifty has two members with one client id.
Tests: pipeline/test_balance.py.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from sparrowmq.errors import ConfigError

GROUPS_MAX = 10_000_000
TOPICS_MAX = 1_000
_MEMBERS_MAX = 8
_DUPLICATE_ID_IN = 50


def check_size(groups: int, topics: int) -> None:
    """Raise a ConfigError if a cluster of this size cannot be generated."""
    for name, value, high in (("groups", groups, GROUPS_MAX), ("topics", topics, TOPICS_MAX)):
        if not 1 <= value <= high:
            raise ConfigError(f"{name} is {value}; it must be from 1 to {high:,}")


def generate_cluster(
    session: SparkSession, groups: int, *, topics: int = 10
) -> tuple[DataFrame, DataFrame]:
    """Return the tables `topics` and `members` for `balance`.

    Args:
        groups: the number of consumer groups.
        topics: the number of topics that each group reads.

    Raises: ConfigError if a number is out of range.
    """
    check_size(groups, topics)
    # Every value is a hash of the row's ids, so the result does not depend on partitions.
    subscriptions = session.sql(
        f"""
        select format_string('GID-%06d', id) as consumerGroup,
            format_string('topic-%06d', xxhash64(id, number) & 1048575) as topic
        from range({groups}) lateral view explode(sequence(1, {topics})) as number
        """
    ).distinct()
    spread = (
        "explode(case xxhash64(topic) & 3 when 0 then array('broker-a') "
        "when 1 then array('broker-b') else array('broker-a', 'broker-b') end)"
    )
    topic_table = subscriptions.selectExpr(
        "consumerGroup", "topic", f"{spread} as brokerName"
    ).selectExpr(
        "*",
        "element_at(array(4, 8, 16), int(pmod(xxhash64(topic, 1), 3)) + 1) as queueCount",
        "double(pmod(xxhash64(topic, 2), 2000)) as messagesPerSecond",
    )
    member_table = session.sql(
        f"""
        select format_string('GID-%06d', id) as consumerGroup,
            format_string('10.%d.%d.%d@%d', id div 62500, (id div 250) % 250, born, 1000 + id % 90)
                as clientId
        from range({groups}) lateral view explode(sequence(1, 1 + int(id * 7 % {_MEMBERS_MAX})))
            as place
        lateral view explode(array(
            if(id % {_DUPLICATE_ID_IN} = 0 and place = 2, 1, place))) as born
        """
    )
    return topic_table, member_table
