"""Servers in a process of their own: from settings to sockets, and to a clean end."""

from __future__ import annotations
