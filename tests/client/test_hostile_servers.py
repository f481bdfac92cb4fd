"""Clients against servers that answer what they like: nothing impossible is believed."""

from __future__ import annotations

from hostile import HostileCluster
from sparrowmq import ConsumeFromWhere, Message, Producer, PushConsumer
from waiting import wait_until

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def test_servers_that_do_not_lie_serve_a_producer_and_a_consumer(hostile: HostileCluster) -> None:
    seen: list[bytes] = []
    with Producer("GID_p", name_server=hostile.address) as producer:
        offsets = [producer.send(Message("T", body)).queue_offset for body in (b"1", b"2")]
    with PushConsumer(
        "GID_c",
        name_server=hostile.address,
        listener=lambda messages, _: seen.extend(message.body for message in messages),
        consume_from_where=FIRST,
    ) as consumer:
        consumer.subscribe("T")
        consumer.start()
        wait_until("consumed", lambda: len(seen) == 2)

    assert [0, 1] == offsets
    assert [b"1", b"2"] == sorted(seen)
    assert {("GID_c", "T", 0): 2} == hostile.broker.committed
