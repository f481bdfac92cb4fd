"""One member of a consumer group: its queues, their locks, its deliveries and commits. Pure."""

from __future__ import annotations
