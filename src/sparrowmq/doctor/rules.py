"""The doctor: runs every rule over one snapshot. Pure.

The rules R come from complaints of RocketMQ's users. R20, R29 and R31 are missing because those
faults leave no trace outside the client; R23 and R24 look like R22. The rules Q cover faults that
every operator meets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from sparrowmq.doctor import (
    flow_rules,
    identity_rules,
    load_rules,
    membership_rules,
    motion_rules,
    subscription_rules,
    topic_rules,
)
from sparrowmq.doctor.case import Case, examine
from sparrowmq.doctor.finding import Finding
from sparrowmq.doctor.snapshot import GroupSnapshot

Rule: TypeAlias = Callable[[Case], list[Finding]]

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "R01": identity_rules.find_duplicate_id_across_hosts,
        "R02": identity_rules.find_duplicate_id_on_host,
        "R03": membership_rules.find_members_in_the_other_cluster,
        "R04": identity_rules.find_duplicated_retries,
        "R05": subscription_rules.find_different_topics,
        "R06": subscription_rules.find_different_expressions,
        "R07": subscription_rules.find_stale_subscription,
        "R08": membership_rules.find_broker_without_members,
        "R09": membership_rules.find_member_missing_at_broker,
        "R10": topic_rules.find_ignored_queues,
        "R11": topic_rules.find_backlog_to_be_skipped,
        "R12": subscription_rules.find_share_without_subscription,
        "R13": topic_rules.find_different_arithmetic,
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
        "Q02": topic_rules.find_unreadable_topics,
        "Q03": topic_rules.find_unreachable_brokers,
        "Q04": topic_rules.find_group_without_members,
        "Q05": topic_rules.find_unknown_strategy,
        "Q06": flow_rules.find_standstill,
        "Q07": flow_rules.find_slow_members,
        "Q08": flow_rules.find_offsets_gone_back,
        "Q09": membership_rules.find_own_strategy_in_mixed_group,
        "Q10": flow_rules.find_slow_growth,
        "Q11": load_rules.find_uneven_input,
        "Q12": flow_rules.find_slow_listeners,
    }
)


def diagnose(snapshot: GroupSnapshot) -> list[Finding]:
    """Return a group's findings: by severity, then by the backlog that they explain."""
    case = examine(snapshot)
    found = [finding for rule in RULES.values() for finding in rule(case)]
    return sorted(found, key=lambda f: (-f.severity, -case.lag({*f.unowned, *f.double})))
