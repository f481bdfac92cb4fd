"""Prometheus series of a cluster: `sparrowmq metrics` and `sparrowmq up --metrics-port`."""

from __future__ import annotations
