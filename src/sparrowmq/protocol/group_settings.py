"""The settings of a consumer group that only RocketMQ 5.x has, in SubscriptionGroupConfig.

SparrowMQ's gRPC service sends the retry policy to its clients. The broker keeps the others for the
broker of 5.x that a store may go back to.
Source: GroupRetryPolicy.java, SimpleSubscriptionData.java. Tests: broker/test_admin.py.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import UNSET, Struct, UnsetType

from sparrowmq.protocol.wire_names import Int64, prepare_types, wire_names


class ExponentialRetryPolicy(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """Waits that grow by a factor; in milliseconds."""

    initial: Int64 = 5_000
    max: Int64 = 7_200_000
    multiplier: Int64 = 2


class CustomizedRetryPolicy(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The wait before each attempt, in milliseconds."""

    next: list[Int64] = []


class GroupRetryPolicy(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """How long a group's failed messages wait."""

    # GroupRetryPolicyType.java.
    __ordinals__: ClassVar[dict[str, tuple[str, ...]]] = {"type": ("EXPONENTIAL", "CUSTOMIZED")}
    type: str = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetryPolicy | UnsetType = UNSET
    customized_retry_policy: CustomizedRetryPolicy | UnsetType = UNSET


class SimpleSubscriptionData(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """What a group subscribes to in a topic, as a tool has set it."""

    topic: str = ""
    expression_type: str | UnsetType = UNSET
    expression: str | UnsetType = UNSET
    version: Int64 = 0


prepare_types(list(globals().values()))
