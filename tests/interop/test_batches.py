"""Messages that our producer sends in batches to Apache's broker, and to ours."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sparrowmq import AsyncProducer, Message

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


async def test_each_message_of_a_batch_gets_its_own_result(java: Any, cluster: Any) -> None:
    topic = "batched-by-python"
    cluster.create_topic(topic, queues=4)
    async with AsyncProducer("GID_py_batches", name_server=cluster.name_server) as producer:
        results = await asyncio.gather(
            *(
                producer.send_nowait(Message(topic, b"m%d" % number, sharding_key=f"k{number % 7}"))
                for number in range(500)
            )
        )

    assert len({(result.queue, result.queue_offset) for result in results}) == 500
    assert len({result.offset_msg_id for result in results}) == 500
    assert len({result.msg_id for result in results}) == 500
    for queue in {result.queue for result in results}:
        offsets = [result.queue_offset for result in results if result.queue == queue]
        assert sorted(offsets) == offsets == list(range(len(offsets)))
