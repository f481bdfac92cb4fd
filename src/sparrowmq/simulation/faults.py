"""The faults of a simulated world, by name. Tests: test_runs.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from sparrowmq.errors import ConfigError
from sparrowmq.simulation.dice import Dice


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The rate of each fault, per minute of virtual time; some are shares.

    Args:
        delay: the share of chunks of bytes that are late by up to `delay_ms_max`.
        reset: a connection breaks, and both sides notice.
        half_open: a connection breaks, and one side notices, or none.
        refused_connect: one host refuses another's connections for a while.
        partition: no bytes arrive from one host at another, in this direction, for a while.
        broker_kill: a broker's process is killed and started again; all its writes stay.
        broker_stop: a broker is stopped cleanly and started again.
        broker_power_cut: a broker's machine loses power; unsynced data may be lost.
        write_power_cut: the same, at a moment of the broker's writing (`WriteMoment`).
        write_kill: the process is killed so; its writes stay, unsynced; it starts again, and the
            machine loses power at once.
        locks_lost: a broker is killed and starts again without its file of locks.
        broker_freeze: a broker stands still for a while.
        name_server_kill: a name server is killed, and forgets everything.
        name_server_away: a name server's machine loses power and is silent for a while.
        name_server_behind: a name server runs, and gets nothing from brokers for a while, so that
            its routes grow old.
        queues_grow: the topic gets more queues on each broker.
        queues_shrink: the topic gets fewer queues; the heal shows all again, with their messages.
        late_retry_topic: 1 if name servers are killed before they know the group's retry topic,
            so that members find retries in it when they come.
        disk_slow: syncs of a broker take seconds, all of them or those of some files.
        disk_full: a broker's disk is full for a while.
        disk_failure: a broker's syncs fail; the broker starts again after a power cut.
        sync_failure: one sync of a broker fails; the operator starts the broker again.
        expiry: the oldest file of a broker's log is removed, consumed or not.
        member_crash: a member's process is killed; another member may join later.
        member_power_cut: a member's machine loses power, and brokers do not notice.
        member_freeze: a member gets SIGSTOP, and SIGCONT after up to three minutes.
        producer_crash: a producer of transactions is killed; another one of its group comes later.
        member_join: a member joins.
        member_leave: a member closes gracefully.
        broker_clock_jump: a broker's wall clock is set forward by an hour at most, or back by
            seconds.
        broker_clock_back: a broker's wall clock is set back by a minute or an hour, and set right
            later.
        client_clock_jump: a client's wall clock is set forward or back by up to a day.
        clock_speed: a broker's or client's wall clock runs at half to twice its speed for a while.
        slow_listener: the share of the listener's calls that last up to `SLOW_MS_MAX`.
        failing_listener: the share of messages whose first calls fail.
        duplicate_ids: the share of members that take another member's client id.
    """

    delay: float = 0.0
    delay_ms_max: int = 2_000
    reset: float = 0.0
    half_open: float = 0.0
    refused_connect: float = 0.0
    partition: float = 0.0
    broker_kill: float = 0.0
    broker_stop: float = 0.0
    broker_power_cut: float = 0.0
    write_power_cut: float = 0.0
    write_kill: float = 0.0
    locks_lost: float = 0.0
    broker_freeze: float = 0.0
    name_server_kill: float = 0.0
    name_server_away: float = 0.0
    name_server_behind: float = 0.0
    queues_grow: float = 0.0
    queues_shrink: float = 0.0
    late_retry_topic: float = 0.0
    disk_slow: float = 0.0
    disk_full: float = 0.0
    disk_failure: float = 0.0
    sync_failure: float = 0.0
    expiry: float = 0.0
    member_crash: float = 0.0
    member_power_cut: float = 0.0
    member_freeze: float = 0.0
    producer_crash: float = 0.0
    member_join: float = 0.0
    member_leave: float = 0.0
    broker_clock_jump: float = 0.0
    broker_clock_back: float = 0.0
    client_clock_jump: float = 0.0
    clock_speed: float = 0.0
    slow_listener: float = 0.0
    failing_listener: float = 0.0
    duplicate_ids: float = 0.0

    @property
    def are_graceful(self) -> bool:
        """Whether all faults are among `GRACEFUL_FAULTS` and `ROUTE_FAULTS`."""
        return keep_only(self, (*GRACEFUL_FAULTS, *ROUTE_FAULTS)) == self

    @property
    def strike_routes(self) -> bool:
        """Whether name servers fail, or routes change."""
        return any(getattr(self, name) for name in ROUTE_FAULTS)

    @property
    def are_prompt(self) -> bool:
        """Whether all faults are among `PROMPT_FAULTS`."""
        return keep_only(self, PROMPT_FAULTS) == self

    @property
    def are_kills(self) -> bool:
        """Whether brokers are killed and name servers fail, and nothing else happens."""
        return keep_only(self, ("broker_kill", *NAME_SERVER_FAULTS)) == self


# Faults that lose and delay nothing: members come and go, listeners are slow, clients' clocks jump.
GRACEFUL_FAULTS = ("member_join", "member_leave", "slow_listener", "client_clock_jump")
# Faults of name servers: routes are late or old, and what is under way goes on.
NAME_SERVER_FAULTS = ("name_server_kill", "name_server_away", "name_server_behind")
# Routes that change too.
ROUTE_FAULTS = (*NAME_SERVER_FAULTS, "queues_grow", "queues_shrink")
# Faults that every side sees at once: brokers and hosts run on, and the network delivers.
PROMPT_FAULTS = (*GRACEFUL_FAULTS, "failing_listener", "member_crash", "reset", "locks_lost")
# Settings of faults that have no instants.
_LASTING = (
    *("delay", "delay_ms_max", "late_retry_topic"),
    *("slow_listener", "failing_listener", "duplicate_ids"),
)
# Faults at instants; each has the name of the method of `Injector` that causes it.
TIMED_FAULTS = tuple(field.name for field in fields(Faults) if field.name not in _LASTING)
# The highest rate per minute, or the highest share, of each fault.
_HIGHEST = {
    "delay": 0.1,
    "reset": 8.0,
    "half_open": 4.0,
    "refused_connect": 4.0,
    "partition": 4.0,
    "broker_kill": 2.0,
    "broker_stop": 2.0,
    "broker_power_cut": 2.0,
    "write_power_cut": 8.0,
    "broker_freeze": 2.0,
    "name_server_kill": 2.0,
    "disk_slow": 3.0,
    "disk_full": 2.0,
    "disk_failure": 1.0,
    "sync_failure": 2.0,
    "member_crash": 2.0,
    "member_power_cut": 1.5,
    "member_freeze": 2.0,
    "member_join": 3.0,
    "member_leave": 3.0,
    "slow_listener": 0.1,
    "failing_listener": 0.2,
}
# Most runs have few kinds of faults: one must not hide another.
_ENABLED_SHARE = 0.3


def draw_faults(dice: Dice) -> Faults:
    """Choose the faults of a run and their rates."""
    rates: dict[str, float] = {}
    for name, highest in _HIGHEST.items():
        enabled, strength = dice.random(), dice.random()
        if enabled < _ENABLED_SHARE:
            rates[name] = highest * (0.2 + 0.8 * strength)
    return Faults(**rates)  # type: ignore[arg-type]


def draw_graceful_faults(dice: Dice) -> Faults:
    """Choose how often members join and leave gracefully, without other faults."""
    return Faults(
        member_join=2 + 6 * dice.random(),
        member_leave=2 + 6 * dice.random(),
        slow_listener=dice.choice((0.0, 0.05)),
    )


def draw_prompt_faults(dice: Dice) -> Faults:
    """Choose how often connections break and members join, leave and die, without other faults."""
    return Faults(
        reset=2 + 6 * dice.random(),
        member_crash=2 + 2 * dice.random(),
        member_join=2 + 4 * dice.random(),
        member_leave=2 * dice.random(),
    )


def draw_lock_faults(dice: Dice) -> Faults:
    """Choose how often a broker loses its locks while members come and go with slow listeners."""
    return Faults(
        locks_lost=4 + 4 * dice.random(),
        member_join=6 + 4 * dice.random(),
        member_leave=6 + 4 * dice.random(),
        slow_listener=0.5,
    )


def draw_kill_faults(dice: Dice) -> Faults:
    """Choose how often brokers are killed and lose their last commits, without other faults."""
    return Faults(broker_kill=6 + 6 * dice.random())


def draw_power_faults(dice: Dice) -> Faults:
    """Choose how often brokers lose power and are killed while they write."""
    return Faults(
        write_power_cut=60 + 40 * dice.random(),
        write_kill=20 + 20 * dice.random(),
        failing_listener=dice.choice((0.0, 0.3)),
    )


def draw_delay_faults(dice: Dice) -> Faults:
    """Choose how often brokers lose what they have delivered late, with listeners that fail."""
    return Faults(
        failing_listener=0.2 + 0.3 * dice.random(),
        disk_slow=10 + 10 * dice.random(),
        broker_power_cut=3 + 3 * dice.random(),
        write_power_cut=6 + 6 * dice.random(),
        broker_stop=dice.choice((0.0, 2.0)),
        sync_failure=dice.choice((0.0, 4.0)),
    )


def draw_retry_faults(dice: Dice) -> Faults:
    """Choose how many messages fail at first, in a group that learns late of its retry topic."""
    return Faults(failing_listener=0.3 + 0.3 * dice.random(), late_retry_topic=1.0)


def keep_only(faults: Faults, names: Iterable[str]) -> Faults:
    """Return only the named faults, to reduce a failing run.

    Raises: ConfigError for an unknown name.
    """
    kept = set(names)
    known = {field.name for field in fields(Faults)} - {"delay_ms_max"}
    if unknown := sorted(kept - known):
        raise ConfigError(f"unknown fault {unknown[0]!r}; there are {', '.join(sorted(known))}")
    dropped: dict[str, Any] = dict.fromkeys(known - kept, 0.0)
    return replace(faults, **dropped)


def describe(faults: Faults) -> str:
    """Return a run's faults as `name=rate`."""
    rates = {f.name: getattr(faults, f.name) for f in fields(Faults) if f.name != "delay_ms_max"}
    return " ".join(f"{name}={rate:.2g}" for name, rate in rates.items() if rate) or "none"
