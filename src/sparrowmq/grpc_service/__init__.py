"""RocketMQ 5's gRPC interface, MessagingService v2, over the broker of the same process."""

from __future__ import annotations
