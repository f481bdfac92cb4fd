"""Bytes to values and back: RocketMQ's remoting protocol and its record format. Pure."""

from __future__ import annotations
