"""Running operations: the effects they yield, and the drivers that carry the effects out."""

from __future__ import annotations
