"""Apache RocketMQ for Python."""

from __future__ import annotations
