"""The rebalance doctor: finds the owners and the faults of a group from outside. Pure."""

from __future__ import annotations

from sparrowmq.doctor.finding import Finding, Severity
from sparrowmq.doctor.group_snapshot import GroupSnapshot
from sparrowmq.doctor.ownership import Ownership, compute_ownership
from sparrowmq.doctor.rules import RULES, diagnose

__all__ = [
    "RULES",
    "Finding",
    "GroupSnapshot",
    "Ownership",
    "Severity",
    "compute_ownership",
    "diagnose",
]
