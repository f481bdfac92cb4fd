"""What brokers and members of a consumer group agree on: queue locks, the members' marker. Pure."""

from __future__ import annotations
