"""R01, R02, R04: two processes with one client id. Pure.

A member finds its share by its client id; a broker lists members by connection. So a broker lists
the id of two processes twice. Both processes take the share of its first place in the list, and
nobody takes the share of the second place. Tests: test_diagnosis_members.py.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from sparrowmq.doctor.finding import Finding, Severity, command_for_members, describe_queues
from sparrowmq.doctor.group_snapshot import MemberConnection
from sparrowmq.doctor.group_view import GroupView, find_duplicates
from sparrowmq.doctor.ownership import (
    Shares,
    allocate_all,
    sorted_ids,
    views_of,
)
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import retry_topic
from sparrowmq.strategies.registry import find_named
from sparrowmq.words import Phrase, count_of, format_rate

# Container engines give their bridges addresses of this network.
_BRIDGES = ipaddress.ip_network("172.16.0.0/12")

_REMEDY = (
    "give every process its own instance name (Java: -Drocketmq.client.name or setInstanceName; "
    "SparrowMQ: instance_name, whose default is unique), or upgrade Java clients older than "
    "4.9.0: they, and all versions for Go, C++ and JavaScript, take the process id, which is "
    "equal in every container; if a member reconnected within the last two minutes, brokers may "
    "still list its old connection: look again"
)


def find_duplicate_id_across_hosts(view: GroupView) -> list[Finding]:
    """R01: processes of several containers or hosts that register the same client id."""
    found = {
        client_id: connections
        for client_id, connections in find_duplicates(view.snapshot.last).items()
        if _is_across_hosts(client_id, connections)
    }
    return [_duplicate_finding(view, "R01", found)] if found else []


def find_duplicate_id_on_host(view: GroupView) -> list[Finding]:
    """R02: two processes of one host, or two consumers of one process, share an instance name."""
    found = {
        client_id: connections
        for client_id, connections in find_duplicates(view.snapshot.last).items()
        if not _is_across_hosts(client_id, connections)
    }
    return [_duplicate_finding(view, "R02", found)] if found else []


def find_duplicated_retries(view: GroupView) -> Iterator[Finding]:
    """R04: two processes with one id both send back a message that both failed to consume."""
    duplicates = find_duplicates(view.snapshot.last)
    retry = retry_topic(view.snapshot.group)
    known = view.progress
    stored = sum(p.max_offset for queue, p in known.items() if queue.topic == retry)
    if not duplicates or not stored or view.snapshot.is_broadcasting:
        return
    grown = sum(r.produced_per_s for queue, r in view.rates.items() if queue.topic == retry)
    stored_text = count_of(stored, "message")
    evidence = [Phrase("{topic} has received {messages} so far", messages=stored_text, topic=retry)]
    if grown > 0:
        evidence.append(
            Phrase("the retry topic grows by {rate} messages a second", rate=format_rate(grown))
        )
    yield Finding(
        rule="R04",
        severity=Severity.ERROR if grown > 0 else Severity.WARN,
        title=Phrase("a group with duplicate client ids sends messages back for retry"),
        evidence=tuple(evidence),
        consequence=Phrase(
            "each process with a duplicate id sends a failed message back, so the copies "
            "multiply with every round until they reach the dead letter queue"
        ),
        remedy="first give every process its own id; then find out why listeners fail",
        commands=(command_for_members(view.snapshot.group),),
        members=tuple(duplicates),
    )


def _is_across_hosts(client_id: str, connections: tuple[MemberConnection, ...]) -> bool:
    hosts = {c.address.rpartition(":")[0] for c in connections}
    if len(hosts) > 1 or "" in hosts:
        return True
    address = client_id.partition("@")[0]
    try:
        return address not in hosts and ipaddress.ip_address(address) in _BRIDGES
    except ValueError:
        return False


def _duplicate_finding(
    view: GroupView, rule: str, found: dict[str, tuple[MemberConnection, ...]]
) -> Finding:
    unowned, double = _effects(view, found)
    before = find_duplicates(view.snapshot.first)
    is_new = any(client_id not in before for client_id in found)
    evidence = [
        Phrase(
            "{id} is listed {n} times: connections from {addresses}",
            id=client_id,
            n=f"{len(connections)}",
            addresses=", ".join(c.address or "an unknown address" for c in connections),
        )
        for client_id, connections in found.items()
    ]
    ports = [c.address.rpartition(":")[2] for each in found.values() for c in each if c.address]
    if ports:
        evidence.append(
            Phrase(
                "on a member's host, `{command}` names the process of that connection",
                command=f"ss -tnp sport = :{ports[0]}",
            )
        )
    if is_new:
        evidence.append(
            Phrase("the first sample did not show every duplicate: a member may be reconnecting")
        )
    where = Phrase("on one host")
    if rule == "R01":
        where = Phrase("on several hosts or containers")
    name = Phrase("client id {id}", id=next(iter(found)))
    if len(found) > 1:
        name = Phrase("each of {n} client ids", n=f"{len(found)}")
    return Finding(
        rule=rule,
        severity=Severity.WARN if is_new or view.snapshot.is_broadcasting else Severity.ERROR,
        title=Phrase("several processes {where} use {name}", name=name, where=where),
        evidence=tuple(evidence),
        consequence=_consequence(view, unowned, double, max(map(len, found.values()))),
        remedy=_REMEDY,
        commands=(command_for_members(view.snapshot.group),),
        unowned=unowned,
        double=double,
        members=tuple(found),
    )


def _consequence(
    view: GroupView,
    unowned: tuple[MessageQueue, ...],
    double: tuple[MessageQueue, ...],
    process_count: int,
) -> str:
    if view.snapshot.is_broadcasting:
        return Phrase(
            "processes on one host share one offset file, and each overwrites the other's offsets"
        )
    parts = []
    if unowned:
        parts.append(
            Phrase(
                "nobody consumes {queues} ({backlog})",
                queues=describe_queues(unowned),
                backlog=view.describe_backlog(unowned),
            )
        )
    if double:
        queues = describe_queues(double)
        parts.append(
            Phrase("both processes consume {queues}: every message twice", queues=queues)
            if process_count == 2
            else Phrase(
                "up to {n} processes consume {queues}: every message up to {n} times",
                queues=queues,
                n=f"{process_count}",
            )
        )
    if not parts:
        return Phrase(
            "no queue falls to these ids now, by chance; the next rebalance may give them one"
        )
    return Phrase("{parts}", parts=tuple(parts))


def _effects(
    view: GroupView, found: dict[str, tuple[MemberConnection, ...]]
) -> tuple[tuple[MessageQueue, ...], tuple[MessageQueue, ...]]:
    """Return the queues that nobody reads, and those read twice, because of these ids."""
    strategy = find_named(view.snapshot.strategy)
    unowned: dict[MessageQueue, None] = {}
    double: dict[MessageQueue, None] = {}
    if strategy is None or view.snapshot.is_broadcasting:
        return (), ()
    shares: dict[tuple[str, ...], tuple[Shares, Shares]] = {}
    for topic in view.snapshot.topics:
        lists = [tuple(sorted_ids(broker)) for broker in views_of(view.snapshot, topic)]
        lists = [cids for cids in lists if any(cids.count(client_id) > 1 for client_id in found)]
        if not lists:
            continue
        # As for the owners: of lists that differ, the one with most members counts.
        cid_all = max(lists, key=len)
        if cid_all not in shares:
            distinct = _with_distinct_ids(cid_all, frozenset(found))
            shares[cid_all] = (
                allocate_all(view.snapshot, strategy, cid_all),
                allocate_all(view.snapshot, strategy, distinct),
            )
        real, apart = shares[cid_all]
        for queue in topic.subscribe_queues:
            if any(client_id in found for client_id in real[queue]):
                double[queue] = None
            elif not real[queue] and any("\0" in client_id for client_id in apart[queue]):
                unowned[queue] = None
    return tuple(unowned), tuple(double)


def _with_distinct_ids(cid_all: Sequence[str], duplicates: frozenset[str]) -> list[str]:
    """Return the list with a distinct id at every place after the first of each duplicate."""
    seen: dict[str, int] = {}
    apart = []
    for client_id in cid_all:
        count = seen[client_id] = seen.get(client_id, 0) + 1
        further = count > 1 and client_id in duplicates
        apart.append(f"{client_id}\0{count}" if further else client_id)
    return apart
