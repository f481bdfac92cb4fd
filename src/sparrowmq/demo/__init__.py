"""The main job on real flights: produce, balance, break, heal, ingest, answer, report."""

from __future__ import annotations
