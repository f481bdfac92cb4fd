"""What clients do, step by step: sequences, retries and deadlines as operations. Pure."""

from __future__ import annotations
