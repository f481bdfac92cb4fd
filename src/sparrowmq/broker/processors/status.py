"""The broker's state and settings for tools, and the settings that tools may change.

A change lasts until the broker stops. Only the settings of the table below can be changed, within
their ranges. None of them names a path, a command or an address.

Differs from RocketMQ: it accepts any setting, which led to CVE-2023-33246 and CVE-2023-37582, and
writes changes to its file. Source: AdminBrokerProcessor.java, 4.9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.state import BrokerState
from sparrowmq.errors import ConfigError
from sparrowmq.model.names import TRACE_TOPIC
from sparrowmq.model.whole_number import read_whole_number
from sparrowmq.protocol.bodies import KVTable, encode_body
from sparrowmq.protocol.codes import MQ_VERSION, ResponseCode
from sparrowmq.serving.connections import Fact, Output
from sparrowmq.serving.requests import Refusal, Request, answer
from sparrowmq.store.retention import RESERVED_HOURS_MAX, RetentionConfig

# MessageStoreConfig.messageDelayLevel.
_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_BODY_BYTES_MAX = 16_384


class Changeable(NamedTuple):
    """A setting that may be changed: its field, of the broker or its retention, and its range.

    `low` is None for a text, which the field's own check validates. `high` is None for a yes or no.
    """

    field: str
    of_retention: bool = False
    low: int | None = None
    high: int | None = None


CHANGEABLE: Mapping[str, Changeable] = MappingProxyType(
    {
        "fileReservedTime": Changeable("retention_hours", True, 1, RESERVED_HOURS_MAX),
        "deleteWhen": Changeable("delete_when", True),
        "diskMaxUsedSpaceRatio": Changeable("disk_expire_percent", True, 10, 100),
        "diskSpaceCleanForciblyRatio": Changeable("disk_force_percent", True, 50, 100),
        "diskSpaceWarningLevelRatio": Changeable("disk_full_percent", True, 50, 100),
        "transactionTimeOut": Changeable("transaction_timeout_ms", False, 1, 3_600_000),
        "transactionCheckMax": Changeable("transaction_check_max", False, 1, 1_000),
        "transactionCheckInterval": Changeable(
            "transaction_check_interval_ms", False, 100, 86_400_000
        ),
        "autoCreateSubscriptionGroup": Changeable("auto_create_groups", False, 0),
    }
)


def update_broker_config(state: BrokerState, request: Request) -> Sequence[Output]:
    """Change all given settings, or none of them."""
    given = _parse_properties(request.command.body or b"")
    state.change_config(
        change_settings(replace(state.config, retention=state.retention.config), given)
    )
    if not given:
        return answer(request)
    said = ", ".join(f"{name} is {text}" for name, text in given.items())
    text = f"{request.connection.address} changed settings until the broker stops: {said}"
    return [*answer(request), Fact(text, warning=True)]


def change_settings(config: BrokerConfig, given: Mapping[str, str]) -> BrokerConfig:
    """Return the settings with changes. Raises: Refusal."""
    retention = config.retention
    for name, text in given.items():
        change = CHANGEABLE.get(name)
        if change is None:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"{name!r} cannot be changed remotely; these can: {', '.join(CHANGEABLE)}",
            )
        value = _parse_value(name, text, change)
        try:
            if change.of_retention:
                retention = replace(retention, **{change.field: value})
            else:
                config = replace(config, **{change.field: value})
        except ConfigError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{name}: {error}") from error
    return replace(config, retention=retention)


def _parse_properties(body: bytes) -> dict[str, str]:
    """Parse lines of `name=value`, as Java's properties without escapes."""
    if len(body) > _BODY_BYTES_MAX:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"settings of {len(body)} bytes")
    found: dict[str, str] = {}
    for line in body.decode("utf-8", "replace").splitlines():
        name, equals, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        if not equals or not name.strip():
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{line[:80]!r} is not a NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def _parse_value(name: str, text: str, change: Changeable) -> Any:
    if change.low is None:
        return text
    if change.high is None:
        if text not in ("true", "false"):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{name} is {text!r}; give true or false")
        return text == "true"
    number = read_whole_number(text)
    if number is None or not change.low <= number <= change.high:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"{name} is {text[:40]!r}; it must be from {change.low} to {change.high}",
        )
    return number


def broker_config(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the settings that tools read, as Java properties; paths are left out."""
    lines = _settings(state.config, state.retention.config, state.retention.retention_hours)
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    return answer(request, ext_fields={}, body=text.encode())


def _settings(
    config: BrokerConfig, retention: RetentionConfig, retention_hours: int
) -> dict[str, str]:
    return {
        "brokerName": config.broker_name,
        "brokerClusterName": config.cluster_name,
        "brokerId": "0",
        "brokerRole": "ASYNC_MASTER",
        "flushDiskType": "SYNC_FLUSH" if config.is_sync else "ASYNC_FLUSH",
        "autoCreateTopicEnable": _java(config.auto_create_topics),
        "autoCreateSubscriptionGroup": _java(config.auto_create_groups),
        "defaultTopicQueueNums": str(config.default_topic_queue_count),
        "maxMessageSize": str(config.message_bytes_max),
        "messageDelayLevel": _DELAY_LEVELS,
        "fileReservedTime": str(retention_hours),
        "deleteWhen": retention.delete_when,
        "diskMaxUsedSpaceRatio": str(retention.disk_expire_percent),
        "diskSpaceCleanForciblyRatio": str(retention.disk_force_percent),
        "diskSpaceWarningLevelRatio": str(retention.disk_full_percent),
        "transactionTimeOut": str(config.transaction_timeout_ms),
        "transactionCheckMax": str(config.transaction_check_max),
        "transactionCheckInterval": str(config.transaction_check_interval_ms),
        "msgTraceTopicName": TRACE_TOPIC,
        "traceTopicEnable": "true",
        "traceOn": "true",
        "filterServerNums": "0",
        "slaveReadEnable": "false",
        "useTLS": "false",
        "clientCallbackExecutorThreads": "1",
    }


def _java(value: bool) -> str:
    return "true" if value else "false"


def runtime_info(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the broker's counts and times, under the names that RocketMQ's tools print.

    RocketMQ's tools need some of these values although this broker has no pool of threads and no
    page cache to wait for. Totals of the morning are 0, as for a broker that started today.
    """
    gets_per_second = state.rates.gets_per_second(request.now_ms, gets=state.counters.gets)
    counters, store, latency = state.counters, state.store, state.pending.latency
    disk = store.disk_space()
    disk_ratio = str(disk.used_percent / 100)
    earliest_ms = store.begin_timestamp_ms
    table = {
        "brokerVersion": str(MQ_VERSION),
        "brokerVersionDesc": "V4_9_3",
        "bootTimestamp": str(state.boot_timestamp_ms),
        "startAcceptSendRequestTimeStamp": str(state.boot_timestamp_ms),
        "brokerActive": "true",
        "runtime": _runtime_text((request.timestamp_ms - state.boot_timestamp_ms) // 1000),
        "commitLogDirCapacity": f"Total : {_size(disk.total_bytes)}, "
        f"Free : {_size(disk.free_bytes)}.",
        "commitLogDiskRatio": disk_ratio,
        "consumeQueueDiskRatio": disk_ratio,
        # RocketMQ's brokers have neither of the two.
        "storeObstacle": str(store.obstacle or ""),
        "clockLeadDays": str(state.doubted_clock_lead_days),
        "commitLogMinOffset": str(store.begin_position),
        "commitLogMaxOffset": str(store.appended_position),
        "earliestMessageTimeStamp": str(-1 if earliest_ms is None else earliest_ms),
        "dispatchBehindBytes": str(store.dispatch_behind_bytes),
        "remainHowManyDataToFlush": f"{store.appended_position - store.flushed_position} B",
        "putMessageTimesTotal": str(counters.puts),
        "putMessageSizeTotal": str(counters.put_bytes),
        "putMessageAverageSize": str(counters.put_bytes / max(1, counters.puts)),
        "putMessageEntireTimeMax": str(latency.max_ms),
        "putLatency99": f"{latency.percentile_ms(0.99, now_ms=request.now_ms):.2f}",
        "putLatency999": f"{latency.percentile_ms(0.999, now_ms=request.now_ms):.2f}",
        "putTps": state.rates.puts_per_second(request.now_ms, puts=counters.puts),
        "getTransferedTps": gets_per_second,
        # The spelling of 5.x.
        "getTransferredTps": gets_per_second,
        "msgPutTotalYesterdayMorning": "0",
        "msgPutTotalTodayMorning": "0",
        "msgPutTotalTodayNow": str(counters.puts),
        "msgGetTotalYesterdayMorning": "0",
        "msgGetTotalTodayMorning": "0",
        "msgGetTotalTodayNow": str(counters.gets),
        "duplicateClientIdTotal": str(counters.duplicate_client_ids),
        **{kind.value: str(count) for kind, count in state.refusals.counts.items()},
        "sendThreadPoolQueueSize": "0",
        "sendThreadPoolQueueHeadWaitTimeMills": "0",
        "pullThreadPoolQueueSize": "0",
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
        "pageCacheLockTimeMills": "0",
        "pullHeldCount": str(len(state.holds)),
        "pendingReplyCount": str(len(state.pending)),
    }
    return answer(request, body=encode_body(KVTable(table=table)))


def _size(count: int) -> str:
    """Return a number of bytes as text. Source: MixAll.humanReadableByteCount."""
    if count < 1 << 10:
        return f"{count} B"
    exponent = min((count.bit_length() - 1) // 10, 6)
    return f"{count / (1 << 10 * exponent):.1f} {'KMGTPE'[exponent - 1]}iB"


def _runtime_text(seconds: int) -> str:
    minutes, seconds = divmod(max(0, seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
