"""Spark's scan of a large store directory: is its time linear, is its memory bounded?

    python benchmarks/store_scan.py [--gigabytes N] [--directory DIR] [--master MASTER]

The benchmark writes a store of N GB in DIR, reads its first quarter, half and whole with the
columns of Spark's source for Kafka, and deletes the store. The messages of 1 KiB lie over 8 queues
as after batches to the queues in turn. Memory is the peak in RAM of one Python worker and of the
JVM so far (VmHWM), which would show a growth with the size of the store.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import tempfile
import time
from pathlib import Path

import numpy as np

from sparrowmq.protocol.record import MAGIC_BLANK, Record, encode_record
from sparrowmq.spark import spark_session

QUEUES = 8
BODY_BYTES = 1024
BATCH_COUNT = 512
LOG_FILE_BYTES = 1 << 30
QUEUE_FILE_ENTRIES = 300_000
ENTRY = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
TOPIC = "rows"


def build(root: Path, size: int) -> int:
    """Write a store of about `size` bytes; return the number of messages of each queue."""
    record = bytes(
        encode_record(
            Record(
                topic=TOPIC,
                queue_id=0,
                body=os.urandom(BODY_BYTES),
                properties="KEYS\x01key-000000000000\x02UNIQ_KEY\x017F0000010000000000000000\x02",
                born_timestamp_ms=1_767_225_600_000,
                store_timestamp_ms=1_767_225_600_000,
            )
        )
    )
    batch = np.frombuffer(record * BATCH_COUNT, dtype=np.uint8).reshape(BATCH_COUNT, -1).copy()
    entries: list[list[np.ndarray]] = [[] for _ in range(QUEUES)]
    (root / "commitlog").mkdir(parents=True)
    per_file = (LOG_FILE_BYTES - 8) // batch.nbytes
    turns = max(1, size // (batch.nbytes * QUEUES))
    for base in range(-(-turns * QUEUES // per_file)):
        with (root / "commitlog" / f"{base * LOG_FILE_BYTES:020d}").open("wb") as file:
            for number in range(base * per_file, min((base + 1) * per_file, turns * QUEUES)):
                position = base * LOG_FILE_BYTES + file.tell()
                turn, queue_id = divmod(number, QUEUES)
                entries[queue_id].append(_place(batch, queue_id, turn * BATCH_COUNT, position))
                file.write(batch.tobytes())
            blank = LOG_FILE_BYTES - file.tell()
            file.write(struct.pack(">iI", blank, MAGIC_BLANK))
            file.truncate(LOG_FILE_BYTES)
    for queue_id, parts in enumerate(entries):
        _write_queue(root / "consumequeue" / TOPIC / str(queue_id), np.concatenate(parts))
    return turns * BATCH_COUNT


def _place(batch: np.ndarray, queue_id: int, offset: int, position: int) -> np.ndarray:
    """Write the records' places into a batch; return their entries of the queue."""
    size = batch.shape[1]
    steps = np.arange(BATCH_COUNT)
    batch[:, 12:16] = np.frombuffer(struct.pack(">i", queue_id), dtype=np.uint8)
    batch[:, 20:28] = _bytes_of(offset + steps)
    batch[:, 28:36] = _bytes_of(position + steps * size)
    entries = np.zeros(BATCH_COUNT, dtype=ENTRY)
    entries["position"], entries["size"] = position + steps * size, size
    return entries


def _bytes_of(values: np.ndarray) -> np.ndarray:
    return np.frombuffer(values.astype(">i8").tobytes(), dtype=np.uint8).reshape(-1, 8)


def _write_queue(directory: Path, entries: np.ndarray) -> None:
    directory.mkdir(parents=True)
    for first in range(0, len(entries), QUEUE_FILE_ENTRIES):
        with (directory / f"{first * ENTRY.itemsize:020d}").open("wb") as file:
            part = entries[first : first + QUEUE_FILE_ENTRIES]
            # NumPy joins arrays in the machine's byte order.
            file.write(part.astype(ENTRY).tobytes())
            file.truncate(QUEUE_FILE_ENTRIES * ENTRY.itemsize)


def peaks_mib() -> tuple[float, float]:
    """Return the peak RAM of one Python worker, and of the JVM, below this process in MiB."""
    python = java = 0.0
    todo = [os.getpid()]
    while todo:
        process = todo.pop()
        try:
            children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
            status = Path(f"/proc/{process}/status").read_text()
        except OSError:
            continue
        todo += map(int, children)
        # Other threads than the JVM's first one started its children.
        for task in Path(f"/proc/{process}/task").glob("*/children"):
            todo += [int(each) for each in task.read_text().split() if each not in children]
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        peak = int(fields.get("VmHWM", "0 kB").split()[0]) / 1024
        if fields["Name"] == "java":
            java = max(java, peak)
        elif process != os.getpid():
            python = max(python, peak)
    return python, java


def scan(spark: object, root: Path, count: int) -> float:
    """Read `count` messages of each queue; return the seconds."""
    ending = {TOPIC: {"broker-a": {str(queue_id): count for queue_id in range(QUEUES)}}}
    begin = time.perf_counter()
    frame = (
        spark.read.format("rocketmq")  # type: ignore[attr-defined]
        .option("storePath", str(root))
        .option("topic", TOPIC)
        .option("profile", "kafka")
        .option("endingOffsets", json.dumps(ending))
        .load()
    )
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--master", default="local[2]")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="store-scan-", dir=arguments.directory))
    try:
        begin = time.perf_counter()
        count = build(root, int(arguments.gigabytes * 1e9))
        size = sum(each.stat().st_blocks * 512 for each in root.glob("commitlog/*"))
        seconds = time.perf_counter() - begin
        print(
            f"{size / 1e9:.1f} GB, {count * QUEUES} messages, written in {seconds:.0f} s",
            flush=True,
        )
        spark = spark_session("scan", master=arguments.master, driver_memory="2g")
        try:
            scan(spark, root, min(count, 10_000))
            print(
                f"{'GB':>6}{'seconds':>10}{'rows/s':>12}{'MB/s':>8}{'worker MiB':>12}{'JVM MiB':>9}"
            )
            for part in (4, 2, 1):
                seconds = scan(spark, root, count // part)
                python, java = peaks_mib()
                rate, speed = count // part * QUEUES / seconds, size / part / seconds / 1e6
                print(
                    f"{size / part / 1e9:>6.1f}{seconds:>10.1f}{rate:>12,.0f}{speed:>8,.0f}"
                    f"{python:>12,.0f}{java:>9,.0f}",
                    flush=True,
                )
        finally:
            spark.stop()
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
