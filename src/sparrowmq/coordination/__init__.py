"""Rules that brokers and members of a group share: queue locks, the members' marker. Pure."""

from __future__ import annotations
