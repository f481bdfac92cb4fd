"""What users call: the asyncio face, and the synchronous face that is made of it."""

from __future__ import annotations
