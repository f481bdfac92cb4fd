"""The native client: producer, consumers and admin, each with a sync and an asyncio face."""

from __future__ import annotations
