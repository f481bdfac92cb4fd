"""The output of `sparrowmq rebalance --json`, as plain values under stable names.

Tests: test_rebalance.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from sparrowmq.cli.output import Json
from sparrowmq.coordination.member_marker import is_marked, unmark_version
from sparrowmq.doctor.explain import Explanation
from sparrowmq.doctor.finding import Finding
from sparrowmq.doctor.group_snapshot import GroupSnapshot, MemberConnection, PlanSnapshot
from sparrowmq.doctor.group_view import GroupView, examine
from sparrowmq.doctor.owner_history import DURATIONS
from sparrowmq.doctor.whatif import Plan, Step, StrategyRun
from sparrowmq.doctor.workloads import GroupSize, GroupWorkload, Policy, Result
from sparrowmq.model import MessageQueue
from sparrowmq.model.spelling import spell_queue
from sparrowmq.words import encode_phrase

if TYPE_CHECKING:
    from sparrowmq.drills.drill import Report


def json_of_group(view: GroupView) -> Json:
    """Return the owners of a group's queues, and the group's offsets."""
    snapshot, loads = view.snapshot, view.loads
    queues = []
    for queue, each in view.queues.items():
        progress, rate, standing = each.progress, each.rate, each.standing
        queues.append(
            {
                **_queue(queue),
                "state": each.state.value,
                "owners": [_connection(c) for c in each.owners],
                "share": [c.client_id for c in each.share],
                "since_timestamp_ms": standing.since_ms if standing.is_exact else None,
                "max_offset": progress.max_offset if progress else None,
                "committed_offset": progress.committed_offset if progress else None,
                "in_flight": progress.in_flight if progress else None,
                "visible_timestamp_ms": (progress.visible_timestamp_ms or None)
                if progress
                else None,
                "deliveries": (progress.deliveries or None) if progress else None,
                "renewals": (progress.renewals or None) if progress else None,
                "oldest_in_flight_timestamp_ms": (progress.oldest_timestamp_ms or None)
                if progress
                else None,
                "lag": each.lag,
                "produced_per_second": _rounded(rate and rate.produced_per_s),
                "consumed_per_second": _rounded(each.consumed_per_s),
            }
        )
    return {
        **_head(snapshot),
        "members": [
            {
                **_connection(connection),
                "language": connection.language,
                "version": unmark_version(connection.version),
                "runs_sparrowmq": is_marked(connection.version),
                "queues": len(view.owned_by(connection.client_id)),
                "load": _rounded(loads.get(connection.client_id)),
            }
            for connection in view.ownership.connections
        ],
        "queues": queues,
        "plan": _plan(snapshot.plan),
    }


def _plan(plan: PlanSnapshot | None) -> Json | None:
    if plan is None or not plan.epoch:
        return None
    return {
        "epoch": plan.epoch,
        "moved": _queues(plan.moved),
        "load_before": plan.load_before,
        "load_after": plan.load_after,
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def json_of_findings(view: GroupView, findings: Sequence[Finding]) -> Json:
    """Return the doctor's findings."""
    lag = view.known_lag
    return {
        **_head(view.snapshot),
        "lag": lag,
        "growth_per_second": round(sum(rate.growth_per_s for rate in view.rates.values()), 3)
        if view.rates and lag is not None
        else None,
        "findings": [_finding(finding) for finding in findings],
    }


def json_of_explanations(snapshot: GroupSnapshot, explanations: Sequence[Explanation]) -> Json:
    """Return the reasons for a queue's owner, one for each member list that brokers return."""
    return {
        **_head(snapshot),
        "explanations": [
            {
                **_queue(explanation.queue),
                "owners": list(explanation.owners),
                "brokers": list(explanation.broker_names),
                "client_ids": list(explanation.cid_all),
                "queues": _queues(explanation.queues),
                "steps": list(explanation.steps),
            }
            for explanation in explanations
        ],
    }


def json_of_runs(plan: Plan, runs: Sequence[StrategyRun]) -> Json:
    """Return the results of each strategy."""
    return {
        "queues": plan.queue_count,
        "members": plan.member_count,
        "brokers": plan.broker_count,
        "rooms": plan.room_count,
        "duplicate_id": plan.has_duplicate_id,
        "events": [str(event) for event in plan.events],
        "strategies": [
            {
                "strategy": run.strategy,
                "of": run.school,
                "steps": [_step(step) for step in run.steps],
            }
            for run in runs
        ],
    }


def json_of_workloads(
    size: GroupSize, results: Sequence[tuple[GroupWorkload, Mapping[Policy, Result]]]
) -> Json:
    """Return the results of simulated workloads."""
    return {
        "queues": size.queues,
        "members": size.members,
        "workloads": [
            {
                "workload": workload.name,
                "policies": {
                    policy.value: {
                        "lag_max": result.lag_max,
                        "moves": result.moves,
                        "load_max": round(result.load_max, 3),
                        "drained_s": result.drained_s if workload.backlog else None,
                    }
                    for policy, result in by_policy.items()
                },
            }
            for workload, by_policy in results
        ],
    }


def json_of_drill(report: Report) -> Json:
    """Return the results of a drill."""
    before, after = examine(report.before), examine(report.after)
    return {
        "drill": report.kind.value,
        "phases": [
            {
                "event": event,
                **{name: getattr(rebalance, name) for name in DURATIONS},
                "moved": len(rebalance.moves),
            }
            for event, rebalance in report.phases
        ],
        "messages": {
            "sent": report.sent,
            "consumed": report.consumed,
            "twice": report.twice,
        },
        "changes": [change._asdict() for change in report.changes],
        "watched_ms": max(span.end_ms for span in report.spans),
        "late_work": None if report.late_work is None else report.late_work._asdict(),
        "before": json_of_group(before),
        "after": json_of_group(after),
        "findings": json_of_findings(after, report.findings)["findings"],
    }


def _step(step: Step) -> Json:
    return {
        "event": str(step.event) if step.event else None,
        "assignment": [
            {
                "member": member.number,
                "client_id": member.client_id,
                "queues": [spell_queue(queue) for queue in step.queue_ids(member.number)],
            }
            for member in step.members
        ],
        "moved": step.moved,
        "needless": step.needless,
        "skew": step.skew,
        "idle": step.idle,
        "unowned": _queues(step.unowned),
        "double": _queues(step.double),
        "messages": step.cost.messages,
        "trips": step.cost.trips,
        "wait_ms_max": step.cost.wait_ms_max,
        "stopped": step.cost.stopped,
        "overlapping": step.cost.overlapping,
        "split_view": step.split._asdict(),
    }


def _head(snapshot: GroupSnapshot) -> Json:
    return {
        "group": snapshot.group,
        "timestamp_ms": snapshot.last.timestamp_ms,
        "interval_ms": snapshot.interval_ms,
        "strategy": snapshot.strategy,
        "strategy_is_known": snapshot.strategy_is_known,
        "is_by_message": snapshot.is_by_message,
        "failures": snapshot.last.failures,
    }


def _finding(finding: Finding) -> Json:
    return {
        "rule": finding.rule,
        "severity": finding.severity.name.lower(),
        "title": finding.title,
        "title_parts": encode_phrase(finding.title),
        "evidence": list(finding.evidence),
        "evidence_parts": encode_phrase(finding.evidence),
        "consequence": finding.consequence,
        "consequence_parts": encode_phrase(finding.consequence),
        "remedy": finding.remedy,
        "commands": [list(command.arguments) for command in finding.commands],
        "unowned": _queues(finding.unowned),
        "double": _queues(finding.double),
        "members": list(finding.members),
        "effects": [_finding(effect) for effect in finding.effects],
    }


def _connection(connection: MemberConnection) -> Json:
    return {"client_id": connection.client_id, "address": connection.address or None}


def _queue(queue: MessageQueue) -> Json:
    return {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}


def _queues(queues: Iterable[MessageQueue]) -> list[Json]:
    return [_queue(queue) for queue in queues]
