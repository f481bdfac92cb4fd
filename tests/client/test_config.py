"""Settings are checked when they are given."""

from __future__ import annotations

from typing import Any

import pytest

from sparrowmq.client.config import ConsumerConfig, ProducerConfig
from sparrowmq.errors import ConfigError
from sparrowmq.membership.process_queue import FlowLimits


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("group", ""),
        ("group", "bad name"),
        ("group", "DEFAULT_CONSUMER"),
        ("pull_batch_size", 0),
        ("pull_batch_size", 4096),
        ("consume_message_batch_max_size", 0),
        ("consume_thread_count", 1001),
        ("consume_thread_count", True),
        ("pull_timeout_ms", 15_000),
        ("drain_timeout_ms", -1),
        ("commit_interval_ms", 1),
        ("max_reconsume_times", -1),
        ("flow", FlowLimits(count_max=0)),
    ],
)
def test_wrong_consumer_setting_is_refused(setting: str, value: Any) -> None:
    settings: dict[str, Any] = {"group": "G", "client_id": "c"} | {setting: value}

    with pytest.raises(ConfigError, match=setting):
        ConsumerConfig(**settings)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("group", "DEFAULT_PRODUCER"),
        ("send_timeout_ms", 0),
        ("retry_times", -1),
        ("retry_times", "2"),
        ("body_bytes_max", 2**30),
    ],
)
def test_wrong_producer_setting_is_refused(setting: str, value: Any) -> None:
    settings: dict[str, Any] = {"group": "G", "client_id": "c"} | {setting: value}

    with pytest.raises(ConfigError, match=setting):
        ProducerConfig(**settings)
