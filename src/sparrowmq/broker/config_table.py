"""A table of settings by name, of topics or groups, and its changes that the journal lacks.

Tests: test_admin.py, test_config_saving.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from sparrowmq.protocol.bodies import DataVersion

Config = TypeVar("Config")
Change = TypeVar("Change")


class ConfigTable(Generic[Config, Change]):
    """A table of settings.

    Args:
        make_change: makes what the journal has of a name's settings in a version of the table.
    """

    def __init__(self, make_change: Callable[[str, Config | None, DataVersion], Change]) -> None:
        self._make_change = make_change
        self._configs: dict[str, Config] = {}
        self._version = DataVersion()
        # Names with changes for the next batch of the journal; a failed write puts them back.
        self.unwritten: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._configs)

    @property
    def version(self) -> DataVersion:
        """The version of the table, which changes with every change of the table."""
        return self._version

    def find(self, name: str) -> Config | None:
        """Return the settings of a name, or None."""
        return self._configs.get(name)

    def replay(self, name: str, config: Config | None, version: DataVersion) -> None:
        """Apply a change from the journal."""
        if config is None:
            self._configs.pop(name, None)
        else:
            self._configs[name] = config
        self._version = version

    def remove(self, name: str, *, timestamp_ms: int) -> bool:
        """Remove a name; return whether there was one."""
        if self._configs.pop(name, None) is None:
            return False
        self._changed(name, timestamp_ms)
        return True

    def _changed(self, name: str, timestamp_ms: int) -> None:
        self._version = DataVersion(timestamp_ms=timestamp_ms, counter=self._version.counter + 1)
        self.unwritten[name] = None

    def take_changes(self) -> list[Change]:
        """Return the changes since the last call, for the journal."""
        names, self.unwritten = self.unwritten, {}
        return [self._make_change(name, self._configs.get(name), self._version) for name in names]
