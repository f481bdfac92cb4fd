"""Serving requests: connections, requests and the TCP server."""

from __future__ import annotations
