"""Settings as fields: the row at a field holds all facts about a setting. Pure.

A client's settings are fields in `client/config.py`, a server's in `hosting/settings.py` and in the
tables that it nests. Checks, options, files, variables, the types that editors show and the page
docs/reference/settings.md are made of the rows.

Tests: client/test_config.py, hosting/test_settings.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from enum import Enum, StrEnum
from types import UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sparrowmq.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")

INT_MAX = 0x7FFFFFFF
_ROW, _TABLE = "setting", "table"


class Setting(NamedTuple):
    """One row.

    Args:
        name: the field's name, which users write.
        kind: the type of the values; `object` for values that another check examines.
        default: the value without the setting; if the default is None, users may give None too.
        unit: "" for none.
        source: RocketMQ's setting of the same meaning, "" for none.
        help: the meaning, without a full stop.
        low: the least allowed number; None for no range.
        high: the greatest allowed number.
        only: the kinds of client, or the commands, with the setting; () for all that have the
            table.
        is_secret: whether errors must not show the value.
    """

    name: str
    kind: type
    default: object
    unit: str
    source: str
    help: str
    low: int | None = None
    high: int | None = None
    only: tuple[str, ...] = ()
    is_secret: bool = False

    @property
    def choices(self) -> tuple[str, ...]:
        """The words of the values, () for values that are not words."""
        return tuple(map(str, self.kind)) if issubclass(self.kind, StrEnum) else ()

    @property
    def option(self) -> str:
        """The name on a command line and in a file, such as `retention-hours`."""
        return self.name.replace("_", "-")


def setting(
    default: Any,
    help: str,
    *,
    low: int | None = None,
    high: int | None = None,
    unit: str = "",
    source: str = "",
    kind: type | None = None,
    only: tuple[str, ...] = (),
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


def nested(table: Any, *, only: tuple[str, ...] = ()) -> Any:
    """Return a dataclass's field that holds a table of further settings.

    Args:
        only: as in `Setting`, for each row of the table.
    """
    return field(default=table, metadata={_TABLE: (type(table), only)})


def rows_of(table: type[DataclassInstance]) -> dict[str, Setting]:
    """Return the rows at the fields of a dataclass and of its nested tables, by name."""
    rows: dict[str, Setting] = {}
    for each in fields(table):
        if _ROW in each.metadata:
            rows[each.name] = each.metadata[_ROW]._replace(name=each.name)
        elif _TABLE in each.metadata:
            inner, only = each.metadata[_TABLE]
            for row in rows_of(inner).values():
                rows[row.name] = row._replace(only=row.only or only)
    return rows


def with_settings(table: C, given: Mapping[str, object]) -> C:
    """Return a table with other values, by the names of its rows and of its nested tables' rows.

    Raises: ConfigError for a wrong value.
    """
    changes: dict[str, Any] = {}
    for each in fields(table):
        if _ROW in each.metadata and each.name in given:
            changes[each.name] = given[each.name]
        elif _TABLE in each.metadata:
            changes[each.name] = with_settings(getattr(table, each.name), given)
    return replace(table, **changes)


def check_settings(config: DataclassInstance) -> None:
    """Raise a ConfigError that names the first value that its row does not allow."""
    for name, row in rows_of(type(config)).items():
        # Nested tables check their own rows.
        value: Any = getattr(config, name, row.default)
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


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Raise a ConfigError that names the setting unless `low <= value <= high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number from {low} to {high}")


def check_kind(name: str, value: object, kind: type | UnionType) -> None:
    """Raise a ConfigError that names the setting unless it is a text, a flag or a constant."""
    if isinstance(value, kind):
        return
    wanted = "a text"
    if kind is bool:
        wanted = "True or False"
    elif isinstance(kind, type) and issubclass(kind, Enum):
        wanted = f"a {kind.__name__}, such as {next(iter(kind))}"
    raise ConfigError(f"{name} is {value!r}; it must be {wanted}")
