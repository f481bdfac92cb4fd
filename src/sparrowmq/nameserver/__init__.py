"""The NameServer: which brokers there are, which topics they hold, and the server for it."""

from __future__ import annotations
