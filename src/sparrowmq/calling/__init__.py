"""The effects that operations yield, and the drivers that carry out the effects."""

from __future__ import annotations
