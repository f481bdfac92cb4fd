"""Hides the extension in C: `PYTHONPATH=benchmarks/plain` measures without it.

A benchmark's servers and Spark's workers inherit the variable. SparrowMQ uses only an extension
with the number of its own interface.
"""

from __future__ import annotations

INTERFACE = 0
