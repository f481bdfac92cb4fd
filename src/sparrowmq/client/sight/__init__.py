"""What others see of a client: spans, series for Prometheus, and what makes them of its calls."""

from __future__ import annotations
