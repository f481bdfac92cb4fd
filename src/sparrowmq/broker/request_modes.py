"""The table of request modes: whether a group consumes a topic by queues or by messages.

Only members that let the broker divide (Java's with `clientRebalance=false`) ask for their mode.
`config/messageRequestMode.json` has RocketMQ's form. Source: MessageRequestModeManager.java of
5.5.0. Tests: test_assignments.py.
"""

from __future__ import annotations

from sparrowmq.broker.journal_records import RequestModeChange
from sparrowmq.protocol.bodies import RequestMode, RequestModeTable

MODES_MAX = 50_000


class RequestModes:
    """The modes that were set, by topic and group."""

    def __init__(self) -> None:
        self._modes: dict[tuple[str, str], RequestMode] = {}
        # Topics and groups with changes for the next batch of the journal; a failed write puts
        # them back.
        self.unwritten: dict[tuple[str, str], None] = {}

    def __len__(self) -> int:
        return len(self._modes)

    def load(self, table: RequestModeTable) -> None:
        """Load the table of a file."""
        self._modes = {
            (topic, group): mode
            for topic, modes in table.message_request_mode_map.items()
            for group, mode in modes.items()
        }

    def replay(self, change: RequestModeChange) -> None:
        """Apply a change from the journal."""
        if change.mode is None:
            self._modes.pop((change.topic, change.group), None)
        else:
            self._modes[change.topic, change.group] = change.mode

    def table(self) -> RequestModeTable:
        """Return the whole table."""
        modes: dict[str, dict[str, RequestMode]] = {}
        for (topic, group), mode in self._modes.items():
            modes.setdefault(topic, {})[group] = mode
        return RequestModeTable(message_request_mode_map=modes)

    def get(self, topic: str, group: str) -> RequestMode:
        """Return a group's mode for a topic: by queues, unless another was set."""
        found = self._modes.get((topic, group))
        return found or RequestMode(topic=topic, consumer_group=group)

    def has(self, topic: str, group: str) -> bool:
        """Return whether a mode was set."""
        return (topic, group) in self._modes

    def put(self, mode: RequestMode) -> None:
        """Set a group's mode for a topic."""
        key = mode.topic, mode.consumer_group
        self._modes[key] = mode
        self.unwritten[key] = None

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove the modes of a deleted topic or group."""
        for key in [key for key in self._modes if topic == key[0] or group == key[1]]:
            del self._modes[key]
            self.unwritten[key] = None

    def take_changes(self) -> list[RequestModeChange]:
        """Return the changes since the last call, for the journal."""
        keys, self.unwritten = self.unwritten, {}
        return [RequestModeChange(*key, self._modes.get(key)) for key in keys]
