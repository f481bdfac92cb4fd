"""Fuzz targets: one for each decoder of bytes that somebody else wrote.

A target is a function of an input. Whatever the input is, the target returns; it raises where a
decoder does other than its docstring says. `python -m fuzz` looks for such inputs, and
`tests/fuzz/test_corpora.py` replays those that were ever found interesting.
"""

from __future__ import annotations
