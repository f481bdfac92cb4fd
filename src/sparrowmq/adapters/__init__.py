"""Other frameworks on RocketMQ; each module needs its framework, which an extra brings."""

from __future__ import annotations
