"""What each consumer group may do: the table of group settings.

Source: SubscriptionGroupManager.java. `config/subscriptionGroup.json` has its form.
"""

from __future__ import annotations

from sparrowmq.model.names import CONSUMER_GROUP_LENGTH_MAX, is_legal_name
from sparrowmq.protocol.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable

GROUPS_MAX = 50_000
# MixAll.java: groups that are always there.
SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)


def find_group_fault(group: str) -> str | None:
    """Return what is wrong with the name of a group that consumes, or None."""
    if not is_legal_name(group):
        return f"the group name {group[:40]!r} is illegal, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(group) > CONSUMER_GROUP_LENGTH_MAX:
        return (
            f"the group name {group[:40]!r}... has {len(group)} characters; "
            f"{CONSUMER_GROUP_LENGTH_MAX} are the most"
        )
    return None


class SubscriptionGroups:
    """The table of consumer groups' settings."""

    def __init__(self, *, auto_create: bool) -> None:
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._version = DataVersion()
        self._auto_create = auto_create

    def __len__(self) -> int:
        return len(self._groups)

    def load(self, table: SubscriptionGroupTable) -> None:
        """Take what a file held, and add the system's groups."""
        self._groups = dict(table.subscription_group_table)
        self._version = table.data_version
        for name in SYSTEM_GROUPS:
            self._groups.setdefault(name, SubscriptionGroupConfig(group_name=name))

    def table(self) -> SubscriptionGroupTable:
        """Return the whole table."""
        return SubscriptionGroupTable(
            subscription_group_table=dict(self._groups), data_version=self._version
        )

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings, or None."""
        return self._groups.get(group)

    def may_create(self, group: str) -> bool:
        """Tell whether a group's first use makes it."""
        return (
            self._auto_create and len(self._groups) < GROUPS_MAX and find_group_fault(group) is None
        )

    def put(self, group: SubscriptionGroupConfig, *, timestamp_ms: int) -> None:
        """Add a group or replace its settings."""
        self._groups[group.group_name] = group
        self._version = DataVersion(timestamp_ms=timestamp_ms, counter=self._version.counter + 1)

    def remove(self, group: str, *, timestamp_ms: int) -> bool:
        """Remove a group; tells whether there was one."""
        if self._groups.pop(group, None) is None:
            return False
        self._version = DataVersion(timestamp_ms=timestamp_ms, counter=self._version.counter + 1)
        return True
