"""What the broker does for each request code, one module per subject. Pure."""

from __future__ import annotations
