"""Other frameworks on RocketMQ; each module needs its framework, which an extra installs."""

from __future__ import annotations
