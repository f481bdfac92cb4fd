"""A cluster as series for Prometheus: `sparrowmq metrics` and `sparrowmq up --metrics-port`."""

from __future__ import annotations
