"""The table of consumer groups' settings.

Source: SubscriptionGroupManager.java. `config/subscriptionGroup.json` has its form.
Tests: test_offsets.py, test_admin.py.
"""

from __future__ import annotations

from sparrowmq.broker.config_table import ConfigTable
from sparrowmq.broker.journal_records import GroupTableChange
from sparrowmq.broker.topic_configs import QUEUE_COUNT_MAX
from sparrowmq.model.names import CONSUMER_GROUP_LENGTH_MAX, is_legal_name
from sparrowmq.protocol.bodies import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    encode_body,
)

GROUPS_MAX = 50_000
# The settings of one group, as in the file.
GROUP_SETTINGS_BYTES_MAX = 8_192
# MixAll.java: groups that are always there.
PREDEFINED_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)


def find_group_fault(group: str) -> str | None:
    """Return the fault of a consumer group's name, as text, or None."""
    if not is_legal_name(group):
        return f"the group name {group[:40]!r} is illegal, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(group) > CONSUMER_GROUP_LENGTH_MAX:
        return (
            f"the group name {group[:40]!r}... has {len(group)} characters; "
            f"the limit is {CONSUMER_GROUP_LENGTH_MAX}"
        )
    return None


def find_settings_fault(group: SubscriptionGroupConfig) -> str | None:
    """Return why a broker does not take a group's settings, or None."""
    size = len(encode_body(group))
    if size > GROUP_SETTINGS_BYTES_MAX:
        return f"a group's settings have at most {GROUP_SETTINGS_BYTES_MAX} bytes, not {size}"
    if group.retry_queue_nums > QUEUE_COUNT_MAX:
        return f"a group has at most {QUEUE_COUNT_MAX} retry queues, not {group.retry_queue_nums}"
    return None


class SubscriptionGroups(ConfigTable[SubscriptionGroupConfig, GroupTableChange]):
    """The table of consumer groups' settings.

    Args:
        auto_create: whether a group is made at its first use; the value may change.
    """

    def __init__(self, *, auto_create: bool) -> None:
        super().__init__(GroupTableChange)
        self.auto_create = auto_create

    def load(self, table: SubscriptionGroupTable) -> None:
        """Load the table of a file, and add the system's groups."""
        self._configs = dict(table.subscription_group_table)
        self._version = table.data_version
        for name in PREDEFINED_GROUPS:
            self._configs.setdefault(name, SubscriptionGroupConfig(group_name=name))

    def table(self) -> SubscriptionGroupTable:
        """Return the whole table."""
        return SubscriptionGroupTable(
            subscription_group_table=dict(self._configs), data_version=self._version
        )

    def may_create(self, group: str) -> bool:
        """Return whether a group's first use makes it."""
        return (
            self.auto_create and len(self._configs) < GROUPS_MAX and find_group_fault(group) is None
        )

    def put(self, group: SubscriptionGroupConfig, *, timestamp_ms: int) -> None:
        """Add a group or replace its settings."""
        self._configs[group.group_name] = group
        self._changed(group.group_name, timestamp_ms)
