"""Writes messages until it is killed; prints each one once the store has acknowledged it.

Arguments: directory, flush mode, first number. A line is `queue_id queue_offset number`.
"""

from __future__ import annotations

import sys

from sparrowmq.protocol.record import Record, encode_host
from sparrowmq.store import FlushMode, MessageStore, PutStatus, StoreConfig
from sparrowmq.store.file_storage import FileStorage


def main(directory: str, mode: str, number: int) -> None:
    config = StoreConfig(
        flush=FlushMode(mode),
        commit_log_file_size=64 << 10,
        index_slot_count=64,
        index_entry_count=256,
        consume_queue_file_size=2000,
        checkpoint_interval_ms=50,
    )
    store = MessageStore(FileStorage(directory), config)
    store.load(timestamp_ms=number)
    host = encode_host("127.0.0.1:1")
    while True:
        lines = []
        for _ in range(1 + number % 40):
            queue_id = number % 3
            body = b"%d " % number + b"x" * (number * 37 % 2000)
            record = Record(
                topic="T", queue_id=queue_id, body=body, born_host=host, store_host=host
            )
            put = store.put(record, timestamp_ms=number)
            assert put.status is PutStatus.PUT_OK, put
            lines.append(f"{queue_id} {put.queue_offset} {number}\n")
            number += 1
        work = store.flush_work()
        if work is not None:
            work.run()
            store.flush_done(work, None)
        store.dispatch()
        sys.stdout.write("".join(lines))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
