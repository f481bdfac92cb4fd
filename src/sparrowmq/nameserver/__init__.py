"""The name server: the brokers, their topics, and the server that answers for them."""

from __future__ import annotations
