"""Microseconds per operation of the protocol's hot paths: `python benchmarks/protocol.py`.

Each figure is the best of several rounds: other work on the machine has little effect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from timeit import Timer

from sparrowmq.protocol.codes import RequestCode, SerializeType
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, encode_frame
from sparrowmq.protocol.headers import (
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    decode_header,
    encode_header,
)
from sparrowmq.protocol.message_id import UniqIdGenerator
from sparrowmq.protocol.properties import encode_properties, parse_properties
from sparrowmq.protocol.record import (
    Record,
    decode_messages,
    decode_record,
    encode_host,
    encode_record,
)

ROUNDS = 7
BODY = b'{"carrier":"UA","flight":1545,"origin":"EWR","dest":"IAH","delay":11}'.ljust(300, b" ")
PROPERTIES = {
    "KEYS": "2013-1-1-UA-1545-EWR",
    "UNIQ_KEY": "7F00000100096B1A3D5C2768F7848F01",
    "WAIT": "true",
    "TAGS": "UA",
    "__SHARDINGKEY": "N14228",
}
SEND = SendMessageRequestHeaderV2(
    producer_group="GID_producer",
    topic="flights",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=3,
    sys_flag=0,
    born_timestamp_ms=1_795_252_251_792,
    flag=0,
    properties=encode_properties(PROPERTIES),
    reconsume_times=0,
)
PULL = PullMessageRequestHeader(
    consumer_group="GID_consumer",
    topic="flights",
    queue_id=3,
    queue_offset=123_456,
    max_msg_nums=32,
    sys_flag=6,
    commit_offset=0,
    suspend_timeout_ms=15_000,
    subscription="*",
    sub_version=1_795_252_251_443,
    expression_type="TAG",
)
SENT = SendMessageResponseHeader(
    msg_id="7F00000100009AB00000000000001075", queue_id=3, queue_offset=123_456
)
RECORD = Record(
    topic="flights",
    queue_id=3,
    body=BODY,
    properties=encode_properties(PROPERTIES),
    born_timestamp_ms=1_795_252_251_792,
    born_host=encode_host("127.0.0.1:39000"),
    store_timestamp_ms=1_795_252_251_792,
    store_host=encode_host("127.0.0.1:10911"),
    queue_offset=123_456,
    position=98_765_432,
)
RECORDS_PER_PULL = 32


def measure(name: str, operation: Callable[[], object], *, per: int = 1) -> None:
    timer = Timer(operation)
    count, seconds = timer.autorange()
    best = min(timer.repeat(ROUNDS, max(1, count // 10)), default=seconds) / max(1, count // 10)
    print(f"{best * 1e6 / per:8.2f} µs  {name}")


def main() -> None:
    decoder = FrameDecoder()
    send = RemotingCommand(
        code=RequestCode.SEND_MESSAGE_V2, opaque=77, ext_fields=encode_header(SEND), body=BODY
    )
    pull = RemotingCommand(code=RequestCode.PULL_MESSAGE, opaque=78, ext_fields=encode_header(PULL))
    binary = RemotingCommand(
        code=RequestCode.SEND_MESSAGE_V2,
        opaque=79,
        ext_fields=encode_header(SEND),
        body=BODY,
        serialize_type=SerializeType.ROCKETMQ,
    )
    send_frame, pull_frame, binary_frame = map(encode_frame, (send, pull, binary))
    encoded = bytes(encode_record(RECORD))
    pulled = encoded * RECORDS_PER_PULL
    ids = UniqIdGenerator(b"\x7f\0\0\1", 9, process_number=1)

    def decode_send(frame: bytes) -> SendMessageRequestHeaderV2:
        (command,) = decoder.receive_data(frame)
        return decode_header(SendMessageRequestHeaderV2, command.ext_fields)

    def decode_pull() -> PullMessageRequestHeader:
        (command,) = decoder.receive_data(pull_frame)
        return decode_header(PullMessageRequestHeader, command.ext_fields)

    print(f"Python {sys.version.split()[0]}, best of {ROUNDS}, body of {len(BODY)} bytes")
    measure("decode frame and header, send v2, JSON", lambda: decode_send(send_frame))
    measure("decode frame and header, send v2, ROCKETMQ", lambda: decode_send(binary_frame))
    measure("decode frame and header, pull, JSON", decode_pull)
    measure("decode header, send v2", lambda: decode_header(type(SEND), send.ext_fields))
    measure("encode header, send v2", lambda: encode_header(SEND))
    measure("encode header, send answer", lambda: encode_header(SENT))
    measure("encode frame, send v2, JSON", lambda: encode_frame(send))
    measure("encode frame, send v2, ROCKETMQ", lambda: encode_frame(binary))
    measure("encode properties", lambda: encode_properties(PROPERTIES))
    measure("parse properties", lambda: parse_properties(RECORD.properties))
    measure("encode record", lambda: encode_record(RECORD))
    measure("decode record", lambda: decode_record(encoded))
    measure(
        "decode messages, per message",
        lambda: decode_messages(pulled, broker_name="broker-a").messages,
        per=RECORDS_PER_PULL,
    )
    measure("make a uniq id", lambda: ids.next_id(1_795_252_251_792))


if __name__ == "__main__":
    main()
