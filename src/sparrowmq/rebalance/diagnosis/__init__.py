"""The rebalance doctor: a group seen from outside, who owns what, what is wrong. Pure."""

from __future__ import annotations

from sparrowmq.rebalance.diagnosis.finding import Finding, Severity
from sparrowmq.rebalance.diagnosis.ownership import Ownership, compute_ownership
from sparrowmq.rebalance.diagnosis.rules import RULES, diagnose
from sparrowmq.rebalance.diagnosis.snapshot import GroupSnapshot

__all__ = [
    "RULES",
    "Finding",
    "GroupSnapshot",
    "Ownership",
    "Severity",
    "compute_ownership",
    "diagnose",
]
