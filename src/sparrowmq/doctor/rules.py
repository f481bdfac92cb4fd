"""The doctor: runs every rule over one snapshot. Pure.

The rules R come from complaints of RocketMQ's users. R20, R29 and R31 are missing because those
faults leave no trace outside the client; R23 and R24 look like R22. The rules Q cover faults that
every operator meets. Tests: test_diagnosis_members.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from sparrowmq.doctor import (
    agreement_rules,
    flow_rules,
    identity_rules,
    load_rules,
    membership_rules,
    motion_rules,
    topic_rules,
)
from sparrowmq.doctor.finding import Finding
from sparrowmq.doctor.group_snapshot import GroupSnapshot
from sparrowmq.doctor.group_view import GroupView, examine

Rule: TypeAlias = Callable[[GroupView], Iterable[Finding]]

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "R01": identity_rules.find_duplicate_id_across_hosts,
        "R02": identity_rules.find_duplicate_id_on_host,
        "R03": membership_rules.find_members_in_the_other_cluster,
        "R04": identity_rules.find_duplicated_retries,
        "R05": agreement_rules.find_different_topics,
        "R06": agreement_rules.find_different_expressions,
        "R07": agreement_rules.find_stale_subscription,
        "R08": membership_rules.find_broker_without_members,
        "R09": membership_rules.find_member_missing_at_broker,
        "R10": topic_rules.find_ignored_queues,
        "R11": topic_rules.find_backlog_to_be_skipped,
        "R12": agreement_rules.find_share_without_subscription,
        "R13": agreement_rules.find_different_strategies,
        "R14": membership_rules.find_idle_members,
        "R15": load_rules.find_topic_tilt,
        "R16": load_rules.find_room_tilt,
        "R17": load_rules.find_lag_tilt,
        "R18": motion_rules.find_churn,
        "R19": membership_rules.find_changing_members,
        "R21": topic_rules.find_broadcast_offsets,
        "R22": topic_rules.find_unlocked_queues,
        "R25": topic_rules.find_ordered_broadcast,
        "R26": motion_rules.find_reconnects,
        "R27": motion_rules.find_slow_start,
        "R28": membership_rules.find_ghosts,
        "R30": load_rules.find_stuck_queues,
        "R32": topic_rules.find_pop_consumers,
        "R33": membership_rules.find_mixed_clusters,
        "Q01": topic_rules.find_surplus_queues,
        "Q02": topic_rules.find_closed_topics,
        "Q03": topic_rules.find_unreachable_brokers,
        "Q04": topic_rules.find_group_without_members,
        "Q05": topic_rules.find_unknown_strategy,
        "Q06": flow_rules.find_standstill,
        "Q07": flow_rules.find_slow_members,
        "Q08": flow_rules.find_moved_offsets,
        "Q09": membership_rules.find_own_strategy_in_mixed_group,
        "Q10": flow_rules.find_slow_growth,
        "Q11": load_rules.find_uneven_input,
        "Q12": flow_rules.find_slow_listeners,
        "Q13": flow_rules.find_failing_listeners,
        "Q14": agreement_rules.find_different_listeners,
        "Q15": agreement_rules.find_different_models,
        "Q16": topic_rules.find_disabled_group,
        "Q17": topic_rules.find_unmatched_subscriptions,
        "Q18": topic_rules.find_refused_filters,
        "Q19": topic_rules.find_closed_retries,
        "Q20": flow_rules.find_uncommitted,
        "Q21": topic_rules.find_unacknowledged,
        "Q22": topic_rules.find_expired,
        "Q23": topic_rules.find_abandoned_queues,
        "Q24": flow_rules.find_waiting_retries,
        "Q25": topic_rules.find_hidden_dead_letters,
    }
)

# The rules that hold for groups that consume by message; the others are about owners of queues.
BY_MESSAGE = frozenset(
    [
        "Q01",
        "Q02",
        "Q03",
        "Q04",
        "Q08",
        "Q10",
        "Q13",
        "Q16",
        "Q19",
        "Q21",
        "Q22",
        "Q23",
        "Q24",
        "Q25",
        "R32",
    ]
)

# Faults and their effects, which other rules find too. The roots come first: their effects may have
# effects of their own.
EFFECTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        cause: frozenset(effects.split())
        for cause, effects in (
            ("R03", "Q02 Q06 R08 R10 R11 R33"),
            ("Q03", "Q06 Q07 Q10 R08 R09 R10 R11 R17 R28 R30"),
            ("Q15", "Q20 Q06 Q07 Q10 R10 R11 R13 R14 R17 R21 R22 R25 R28 R30"),
            ("Q09", "Q20 Q06 Q07 Q10 R10 R11 R13 R14 R17 R22 R28 R30"),
            ("R13", "Q20 Q06 Q07 Q10 R10 R11 R14 R15 R17 R22 R28 R30"),
            ("R01", "Q20 Q06 Q07 Q08 Q10 R04 R10 R11 R13 R14 R17 R22 R26 R28 R30"),
            ("R02", "Q20 Q06 Q07 Q08 Q10 R04 R10 R11 R13 R14 R17 R22 R26 R28 R30"),
            ("R05", "Q06 Q07 Q10 R06 R07 R10 R11 R12 R14 R17 R28 R30"),
            ("R12", "Q06 Q07 Q10 R10 R11 R14 R17 R28 R30"),
            ("Q16", "Q06 Q07 Q10 R10 R11 R17 R28 R30"),
            ("Q18", "Q06 Q07 Q10 Q17 R10 R11 R17 R28 R30"),
            ("R06", "Q07 Q10 R07 R17"),
            ("R08", "Q06 Q07 Q10 R09 R10 R11 R17 R28 R30"),
            ("R09", "Q07 Q10 R10 R11 R17 R28 R30"),
            ("R10", "R11 R28"),
            ("Q19", "Q06 Q07 Q10 Q13 Q24 R17 R28 R30"),
            ("Q04", "Q24"),
            # In order, a message that fails stops its queue.
            ("Q13", "Q21 Q24 Q06 Q07 Q10 R17 R28 R30"),
            ("Q20", "Q07 Q10 R11 R17"),
            ("Q06", "Q10 Q12 R11 R17 R22 R30"),
            ("Q08", "Q20 Q10 R17"),
            # A slow listener that still finishes calls makes its member's queues stand still.
            ("Q12", "Q07 Q10 R17 R28 R30"),
            ("R28", "Q07 Q10 R10 R11 R17 R22 R30"),
            ("Q11", "Q07 Q10 R17"),
            ("R22", "Q07 Q10 R11 R17 R30"),
            ("R30", "Q10 R11 R17"),
            ("Q07", "R17"),
            ("R19", "Q10"),
        )
    }
)


def diagnose(snapshot: GroupSnapshot) -> list[Finding]:
    """Return a group's faults: by severity, then by the backlog that they explain.

    One fault is one finding: its effects are folded under it.
    """
    view = examine(snapshot)
    found = _join_effects(apply_rules(view))
    return sorted(found, key=lambda f: (-f.severity, -view.lag({*f.unowned, *f.double})))


def apply_rules(view: GroupView) -> list[Finding]:
    """Return what every rule finds, effects of other faults included."""
    by_message = view.ownership.is_by_message
    rules = [rule for name, rule in RULES.items() if not by_message or name in BY_MESSAGE]
    return [finding for rule in rules for finding in rule(view)]


def _join_effects(found: list[Finding]) -> list[Finding]:
    roots = list(EFFECTS)
    left = sorted(found, key=lambda f: roots.index(f.rule) if f.rule in EFFECTS else len(roots))
    joined: list[Finding] = []
    while left:
        cause, *others = left
        effects = tuple(each for each in others if _explains(cause, each))
        left = [each for each in others if each not in effects]
        joined.append(replace(cause, effects=effects))
    return joined


def _explains(cause: Finding, effect: Finding) -> bool:
    """Return whether a finding is an effect of another: a milder one about the same members."""
    if effect.rule not in EFFECTS.get(cause.rule, ()) or effect.severity > cause.severity:
        return False
    shared = set(cause.members) & set(effect.members)
    return bool(shared) or not (cause.members and effect.members)
