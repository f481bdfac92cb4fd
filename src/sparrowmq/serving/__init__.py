"""The server side: connections, requests, access control and the TCP server."""

from __future__ import annotations
