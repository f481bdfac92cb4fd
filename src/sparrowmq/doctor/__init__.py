"""The rebalance doctor: finds the owners and the faults of a group from outside. Pure.

The names are loaded when they are first asked for: consumers take snapshots, and need no rules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
_MODULES = {
    "RULES": "rules",
    "Finding": "finding",
    "GroupSnapshot": "group_snapshot",
    "Ownership": "ownership",
    "Severity": "finding",
    "compute_ownership": "ownership",
    "diagnose": "rules",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = found
        return found
