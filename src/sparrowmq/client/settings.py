"""Settings as fields: the row at a field holds all facts about a setting. Pure.

`client/config.py` gives each field that users set its row. Checks, the types that editors show
(`client/setting_types.py`) and the page docs/reference/settings.md are made of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from sparrowmq.client.arguments import check_kind, check_range
from sparrowmq.config import Setting
from sparrowmq.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")

_ROW = "setting"


def setting(
    default: Any,
    help: str,
    *,
    low: int | None = None,
    high: int | None = None,
    unit: str = "",
    source: str = "",
    kind: type | None = None,
    only: str = "",
    is_secret: bool = False,
) -> Any:
    """Return a dataclass's field that users set; see `Setting`.

    Args:
        kind: None for the type of the default.
    """
    row = Setting(
        "", kind or type(default), default, unit, source, help, low, high, only, is_secret
    )
    return field(default=default, repr=not is_secret, metadata={_ROW: row})


def rows_of(table: type[DataclassInstance]) -> dict[str, Setting]:
    """Return the rows at the fields of a dataclass, by name."""
    return {
        each.name: each.metadata[_ROW]._replace(name=each.name)
        for each in fields(table)
        if _ROW in each.metadata
    }


def check_settings(config: DataclassInstance) -> None:
    """Raise a ConfigError that names the first value that its row does not allow."""
    for name, row in rows_of(type(config)).items():
        value = getattr(config, name)
        if value is row.default:
            continue
        if row.is_secret and not isinstance(value, row.kind):
            raise ConfigError(
                f"{name} must be a {row.kind.__name__}; its value is a secret and not shown"
            )
        if row.low is None or row.high is None:
            check_kind(name, value, row.kind)
        else:
            check_range(name, value, row.low, row.high)


@dataclass(frozen=True, slots=True)
class ClientKind:
    """A kind of client: its name, and the tables that hold its settings."""

    name: str
    tables: tuple[type[DataclassInstance], ...]

    def rows(self) -> dict[str, Setting]:
        """Return the rows of all its settings, by name."""
        return {
            name: row
            for table in self.tables
            for name, row in rows_of(table).items()
            if row.only in ("", self.name)
        }

    def check_names(self, given: Mapping[str, object]) -> None:
        """Raise a ConfigError for a name that is not a setting of this kind of client."""
        known = self.rows()
        for name in given:
            if name in known:
                continue
            near = get_close_matches(name.lower(), known, n=1)
            hint = f"did you mean {near[0]}" if near else f"there are {', '.join(sorted(known))}"
            raise ConfigError(f"{self.name} has no setting {name!r}; {hint}")


def take(table: type[C], given: Mapping[str, object], **made: object) -> C:
    """Make one table's value from the given settings.

    Args:
        made: fields that come from elsewhere.

    Raises: ConfigError for a wrong value.
    """
    names = rows_of(table)
    chosen = {name: value for name, value in given.items() if name in names}
    return table(**chosen, **made)
