"""Rules that brokers and members of a group share: leases, the members' marker, claims. Pure."""

from __future__ import annotations
