"""Hides the extension in C: `PYTHONPATH=benchmarks/plain` measures without it.

Servers and Spark's workers that a benchmark starts inherit the variable. SparrowMQ uses only an
extension with the number that it knows.
"""

from __future__ import annotations

INTERFACE = 0
