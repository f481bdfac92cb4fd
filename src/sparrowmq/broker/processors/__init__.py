"""The broker's processors of request codes, one module per subject. Pure."""

from __future__ import annotations
