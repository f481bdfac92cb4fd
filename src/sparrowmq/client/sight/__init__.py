"""Observability of clients: OpenTelemetry spans, series for Prometheus, and their observers."""

from __future__ import annotations
