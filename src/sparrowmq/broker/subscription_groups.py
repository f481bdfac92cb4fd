"""The table of consumer groups' settings.

Source: SubscriptionGroupManager.java. `config/subscriptionGroup.json` has its form.
Tests: test_offsets.py, test_admin.py.
"""

from __future__ import annotations

from sparrowmq.broker.journal_records import GroupTableChange
from sparrowmq.model.names import CONSUMER_GROUP_LENGTH_MAX, is_legal_name
from sparrowmq.protocol.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable

GROUPS_MAX = 50_000
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


class SubscriptionGroups:
    """The table of consumer groups' settings.

    Args:
        auto_create: whether a group is made at its first use; the value may change.
    """

    def __init__(self, *, auto_create: bool) -> None:
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._version = DataVersion()
        self.auto_create = auto_create
        # Groups with changes that are not in the journal yet.
        self._unwritten: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def load(self, table: SubscriptionGroupTable) -> None:
        """Load the table of a file, and add the system's groups."""
        self._groups = dict(table.subscription_group_table)
        self._version = table.data_version
        for name in PREDEFINED_GROUPS:
            self._groups.setdefault(name, SubscriptionGroupConfig(group_name=name))

    def replay(self, change: GroupTableChange) -> None:
        """Apply a change from the journal."""
        if change.config is None:
            self._groups.pop(change.name, None)
        else:
            self._groups[change.name] = change.config
        self._version = change.version

    @property
    def version(self) -> DataVersion:
        """The version of the table, which changes with every change of the table."""
        return self._version

    def table(self) -> SubscriptionGroupTable:
        """Return the whole table."""
        return SubscriptionGroupTable(
            subscription_group_table=dict(self._groups), data_version=self._version
        )

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings, or None."""
        return self._groups.get(group)

    def may_create(self, group: str) -> bool:
        """Return whether a group's first use makes it."""
        return (
            self.auto_create and len(self._groups) < GROUPS_MAX and find_group_fault(group) is None
        )

    def put(self, group: SubscriptionGroupConfig, *, timestamp_ms: int) -> None:
        """Add a group or replace its settings."""
        self._groups[group.group_name] = group
        self._changed(group.group_name, timestamp_ms)

    def remove(self, group: str, *, timestamp_ms: int) -> bool:
        """Remove a group; return whether there was one."""
        if self._groups.pop(group, None) is None:
            return False
        self._changed(group, timestamp_ms)
        return True

    def _changed(self, group: str, timestamp_ms: int) -> None:
        self._version = DataVersion(timestamp_ms=timestamp_ms, counter=self._version.counter + 1)
        self._unwritten[group] = None

    @property
    def is_unwritten(self) -> bool:
        """Whether there are changes that are not in the journal yet."""
        return bool(self._unwritten)

    def take_changes(self) -> list[GroupTableChange]:
        """Return the changes since the last call, for the journal."""
        names, self._unwritten = self._unwritten, {}
        return [GroupTableChange(name, self._groups.get(name), self._version) for name in names]

    def note_unwritten(self, name: str) -> None:
        """Let `take_changes` return a group again, since its write to the journal failed."""
        self._unwritten[name] = None
