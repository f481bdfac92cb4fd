"""Which consumer groups a cluster knows, and a look at many of them.

Source: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.calling.effects import Operation
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.administer import master_addresses
from sparrowmq.client.operations.gather import gather, gather_outcomes
from sparrowmq.client.operations.request import ask, decode_answer
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.doctor.snapshot import GroupSnapshot
from sparrowmq.errors import SparrowError
from sparrowmq.model.names import is_system_group
from sparrowmq.protocol.bodies import SubscriptionGroupTable
from sparrowmq.protocol.codes import RequestCode

# Groups looked at at the same time.
GROUPS_AT_ONCE = 8


def list_groups(directory: Directory) -> Operation[list[str]]:
    """Return the groups that any master knows, without RocketMQ's own, in the order of names.

    Raises: RouteError if no broker is known; ConnectFailed; BrokerError; TransportError.
    """
    addresses = yield from master_addresses(directory)
    tables = yield from gather([_ask_groups(directory, a) for a in addresses], name="groups")
    names = {name for table in tables for name in table}
    return sorted(name for name in names if not is_system_group(name))


def take_snapshots(
    directory: Directory, groups: Sequence[str], *, interval_ms: int = 0
) -> Operation[tuple[list[GroupSnapshot], dict[str, SparrowError]]]:
    """Look at groups, a few at a time.

    Args:
        groups: their names.
        interval_ms: the pause between two looks at each; 0 looks once.

    Returns: what was seen, in the order of `groups`, and why a group could not be looked at.
    """
    found: list[GroupSnapshot] = []
    failures: dict[str, SparrowError] = {}
    for start in range(0, len(groups), GROUPS_AT_ONCE):
        some = groups[start : start + GROUPS_AT_ONCE]
        looks = [take_snapshot(directory, group, interval_ms=interval_ms) for group in some]
        outcomes = yield from gather_outcomes(looks, name="snapshots")
        for group, outcome in zip(some, outcomes, strict=True):
            if isinstance(outcome, SparrowError):
                failures[group] = outcome
            else:
                found.append(outcome)
    return found, failures


def _ask_groups(directory: Directory, address: str) -> Operation[list[str]]:
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    reply = yield from ask(address, code, timeout_ms=directory.timeout_ms)
    return list(decode_answer(SubscriptionGroupTable, reply, address).subscription_group_table)
