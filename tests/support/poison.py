"""Messages as no client of ours sends them: the sys flag says one thing, the body is another."""

from __future__ import annotations

from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.client.operations.request import ask
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.compression import COMPRESSED
from sparrowmq.protocol.headers import SendMessageRequestHeaderV2

TIMEOUT_MS = 5_000


def send_stored(
    address: str,
    queue: MessageQueue,
    body: bytes,
    *,
    sys_flag: int = COMPRESSED,
    msg_id: str = "",
    born_timestamp_ms: int = 1_795_252_251_792,
) -> str:
    """Send a message whose body is stored as it is given, whatever the sys flag says of it.

    Returns: the id that its broker gave.
    """
    header = SendMessageRequestHeaderV2(
        producer_group="GID_poison",
        topic=queue.topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue.queue_id,
        sys_flag=sys_flag,
        born_timestamp_ms=born_timestamp_ms,
        flag=0,
        properties=f"UNIQ_KEY\x01{msg_id}" if msg_id else "",
        reconsume_times=0,
    )
    with BlockingDriver() as driver:
        reply = driver.run(
            ask(address, RequestCode.SEND_MESSAGE_V2, header, body=body, timeout_ms=TIMEOUT_MS)
        )
    return (reply.ext_fields or {})["msgId"]
