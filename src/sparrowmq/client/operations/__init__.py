"""The clients' operations: sequences of requests with their retries and deadlines. Pure."""

from __future__ import annotations
