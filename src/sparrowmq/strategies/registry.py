"""RocketMQ's six strategies and SparrowMQ's by name; makes a strategy of a user's choice.

Tests: test_strategies.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast

from sparrowmq.errors import ConfigError, did_you_mean
from sparrowmq.strategies.across_topics import AllocateMessageQueueAcrossTopics
from sparrowmq.strategies.averagely import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
)
from sparrowmq.strategies.by_config import AllocateMessageQueueByConfig
from sparrowmq.strategies.by_load import AllocateMessageQueueByLoad
from sparrowmq.strategies.consistent_hash import AllocateMessageQueueConsistentHash
from sparrowmq.strategies.consistent_hash_bounded import AllocateMessageQueueConsistentHashBounded
from sparrowmq.strategies.machine_room import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueByMachineRoom,
)
from sparrowmq.strategies.minimal_move import AllocateMessageQueueMinimalMove
from sparrowmq.strategies.strategy import (
    AllocateFunction,
    AllocateMessageQueueStrategy,
    FunctionStrategy,
)

# Any, because the classes' constructors take different arguments.
StrategyClass: TypeAlias = type[Any]
# The strategies without settings; a type checker reports an unknown name.
StrategyName: TypeAlias = Literal[
    "AVG",
    "AVG_BY_CIRCLE",
    "CONSISTENT_HASH",
    "MACHINE_ROOM_NEARBY-AVG",
    "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE",
    "MACHINE_ROOM_NEARBY-CONSISTENT_HASH",
    "MINIMAL_MOVE",
    "CONSISTENT_HASH_BOUNDED",
    "AVG_ACROSS_TOPICS",
    "AVG_BY_LOAD",
]
StrategyChoice: TypeAlias = (
    StrategyName | AllocateMessageQueueStrategy | StrategyClass | AllocateFunction
)

STRATEGIES: Mapping[str, StrategyClass] = MappingProxyType(
    {
        "AVG": AllocateMessageQueueAveragely,
        "AVG_BY_CIRCLE": AllocateMessageQueueAveragelyByCircle,
        "CONFIG": AllocateMessageQueueByConfig,
        "MACHINE_ROOM": AllocateMessageQueueByMachineRoom,
        "MACHINE_ROOM_NEARBY": AllocateMachineRoomNearby,
        "CONSISTENT_HASH": AllocateMessageQueueConsistentHash,
    }
)

# Only SparrowMQ has these strategies: every member of the group must run SparrowMQ.
SPARROW_STRATEGIES: Mapping[str, StrategyClass] = MappingProxyType(
    {
        "MINIMAL_MOVE": AllocateMessageQueueMinimalMove,
        "CONSISTENT_HASH_BOUNDED": AllocateMessageQueueConsistentHashBounded,
        "AVG_ACROSS_TOPICS": AllocateMessageQueueAcrossTopics,
        "AVG_BY_LOAD": AllocateMessageQueueByLoad,
    }
)
_ALL: Mapping[str, StrategyClass] = {**STRATEGIES, **SPARROW_STRATEGIES}

_NEARBY = "MACHINE_ROOM_NEARBY"
_NEARBY_PREFIX = f"{_NEARBY}-"
# The end of a reported name that lacks the strategy's settings.
OWN_SETTINGS = " (own settings)"
# Strategies that need settings, and the value to pass instead of the name.
NEEDS_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "CONFIG": "pass AllocateMessageQueueByConfig([MessageQueue(...), ...])",
        "MACHINE_ROOM": 'pass AllocateMessageQueueByMachineRoom({"room1", ...})',
        "MACHINE_ROOM_NEARBY": (
            "pass AllocateMachineRoomNearby(inner, resolver), or the name MACHINE_ROOM_NEARBY-AVG "
            "where broker names and client ids begin with `room-`"
        ),
    }
)


def strategy_from(value: StrategyChoice | str) -> AllocateMessageQueueStrategy:
    """Make a strategy of a user's choice.

    Args:
        value: a name (`MACHINE_ROOM_NEARBY-<inner>` included), a strategy, a strategy's class, or
            a function of (consumer_group, current_cid, mq_all, cid_all).

    Raises: ConfigError if the name is unknown (the error names the nearest), if the strategy needs
    settings, or if the value is none of these.
    """
    if isinstance(value, str):
        return _strategy_by_name(value)
    if isinstance(value, type):
        if value in STRATEGIES.values():
            return _strategy_by_name(next(n for n, c in STRATEGIES.items() if c is value))
        return strategy_from(value())
    if callable(getattr(value, "allocate", None)):
        if not isinstance(getattr(value, "name", None), str):
            raise ConfigError(f"strategy {value!r} has no name: give it an attribute `name`")
        return cast(AllocateMessageQueueStrategy, value)
    if callable(value):
        return FunctionStrategy(value)
    raise ConfigError(
        f"strategy is {value!r}: it must be a name ({', '.join(_ALL)}), a strategy or a "
        f"function of (consumer_group, current_cid, mq_all, cid_all)"
    )


def find_named(name: str) -> AllocateMessageQueueStrategy | None:
    """Return the strategy of a reported name; None if the name lacks its settings (CONFIG ...)."""
    try:
        return strategy_from(name)
    except ConfigError:
        return None


def reported_name(strategy: AllocateMessageQueueStrategy) -> str:
    """Return the name by which a member reports its strategy.

    Others compute the member's shares from this name. So a strategy that the name alone does not
    make is marked, such as CONSISTENT_HASH with another number of nodes.
    """
    made = find_named(strategy.name)
    is_same = made is None or (type(made) is type(strategy) and repr(made) == repr(strategy))
    return strategy.name if is_same else strategy.name + OWN_SETTINGS


def join_reported(names: Iterable[str]) -> str | None:
    """Return the strategy of members that report these names; None if the strategies differ.

    A member with settings of its own may agree with a member that reports the name alone, as Java's
    members do whatever their settings are. They do not report the inner strategy either.
    """
    reported = set(names)
    plain = {name.removesuffix(OWN_SETTINGS) for name in reported}
    if _NEARBY in plain:
        plain = {name for name in plain if not name.startswith(_NEARBY_PREFIX)}
    if len(plain) != 1:
        return None
    (name,) = plain
    return name + OWN_SETTINGS if any(n.endswith(OWN_SETTINGS) for n in reported) else name


def unknown_strategy(name: str, known: Iterable[str]) -> ConfigError:
    """Return the error of a name that no strategy has."""
    names = tuple(known)
    hint = did_you_mean(name, names, f"all are {', '.join(names)}")
    return ConfigError(f"unknown strategy {name!r}{hint}")


def _strategy_by_name(name: str) -> AllocateMessageQueueStrategy:
    inner = name.removeprefix(_NEARBY_PREFIX)
    # Within one room there is no other room to divide.
    if inner != name and not inner.startswith(_NEARBY_PREFIX):
        return AllocateMachineRoomNearby(_strategy_by_name(inner))
    if name in NEEDS_SETTINGS:
        raise ConfigError(f"strategy {name} needs settings: {NEEDS_SETTINGS[name]}")
    if name not in _ALL:
        raise unknown_strategy(name, _ALL)
    return cast(AllocateMessageQueueStrategy, _ALL[name]())
