"""The broker's cost per request, and its rate over sockets: `python benchmarks/broker.py`.

The first part drives the machine alone: frame in, message into the log, frame out. A sync of the
disk comes once per hundred requests and counts as waiting, not as processor time. The second part
sends over eight connections to a broker in a process of its own.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from sparrowmq.broker.broker import Broker
from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.config_saving import SavedTables
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, encode_frame
from sparrowmq.protocol.record import BatchEntry, encode_batch, encode_host
from sparrowmq.protocol.request_decoder import RequestDecoder
from sparrowmq.serving.connections import Connection, Reply
from sparrowmq.store.config import StoreConfig
from sparrowmq.store.file_storage import FileStorage
from sparrowmq.store.message_store import MessageStore
from sparrowmq.testing import EmbeddedCluster

GROUP_SIZE = 100
ROUNDS = 5
BODY = b'{"carrier":"UA","flight":1545,"origin":"EWR","dest":"IAH","delay":11}'.ljust(300, b" ")
PROPERTIES = (
    "KEYS\x012013-1-1-UA-1545-EWR\x02UNIQ_KEY\x017F00000100096B1A3D5C2768F7848F01\x02"
    "WAIT\x01true\x02TAGS\x01UA\x02__SHARDINGKEY\x01N14228"
)
PEER = Connection(1, "127.0.0.1:5000", encode_host("127.0.0.1:5000"))


def send(opaque: int, *, batch: int = 0) -> bytes:
    """Return the frame of one send, or of a batch."""
    body = encode_batch([BatchEntry(0, BODY, PROPERTIES)] * batch) if batch else BODY
    fields = {"a": "GID_p", "b": "T", "c": "TBW102", "d": "8", "e": str(opaque % 8), "f": "0"}
    fields |= {"g": "1795252251857", "h": "0", "i": "" if batch else PROPERTIES, "j": "0"}
    fields |= {"k": "false", "m": "true" if batch else "false"}
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    return encode_frame(RemotingCommand(code=code, ext_fields=fields, body=body, opaque=opaque))


def pull(count: int) -> bytes:
    """Return the frame of one pull."""
    fields = {"consumerGroup": "GID_c", "topic": "T", "queueId": "0", "queueOffset": "0"}
    fields |= {"maxMsgNums": str(count), "sysFlag": "4", "commitOffset": "0"}
    fields |= {"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
    return encode_frame(RemotingCommand(code=RequestCode.PULL_MESSAGE, ext_fields=fields))


class Machine:
    """A broker without sockets or threads."""

    def __init__(self, root: Path) -> None:
        self.store = MessageStore(FileStorage(root), StoreConfig())
        self.store.load(timestamp_ms=0)
        self.broker = Broker(
            BrokerConfig(address="127.0.0.1:10911"),
            self.store,
            random_below=lambda count: 0,
            saved=SavedTables(),
            now_ms=0,
            timestamp_ms=0,
        )
        self.decoder = RequestDecoder()

    def serve(self, frames: list[bytes]) -> float:
        """Serve requests in groups; return the processor's microseconds for each request."""
        begin = time.process_time()
        for at in range(0, len(frames), GROUP_SIZE):
            for frame in frames[at : at + GROUP_SIZE]:
                for command in self.decoder.receive_data(frame):
                    self._write(self.broker.handle(command, PEER, now_ms=0, timestamp_ms=1))
            self._write(self._end_group())
        return (time.process_time() - begin) / len(frames) * 1e6

    def index(self) -> float:
        """Index all sent messages; return the processor's microseconds for each message.

        A broker indexes in idle moments, or, if the index lags too far, with the sends.
        """
        count = sum(self.store.queues.max_offset("T", queue_id) for queue_id in range(8))
        begin = time.process_time()
        for _ in self.store.query(
            "T", "none", count_max=1, bytes_max=1, begin_timestamp_ms=0, end_timestamp_ms=1
        ):
            pass
        return (time.process_time() - begin) / count * 1e6

    def _end_group(self) -> list[object]:
        outputs: list[object] = []
        flush = self.broker.flush_work(now_ms=0)
        if flush is not None:
            flush.run()
            outputs += self.broker.flushed(flush, None, now_ms=0)
        journal = self.broker.journal_work(now_ms=0)
        if journal is not None:
            outputs += self.broker.journaled(journal, None)
        return outputs

    def _write(self, outputs: object) -> None:
        assert isinstance(outputs, list | tuple)
        for output in outputs:
            if isinstance(output, Reply):
                encode_frame(output.command)


def measure_machine() -> None:
    """Print the cost of each kind of request."""
    with tempfile.TemporaryDirectory() as root:
        machine = Machine(Path(root))
        machine.serve([send(0)])
        kinds = {
            "send": [send(opaque) for opaque in range(2_000)],
            "send a batch of 64": [send(opaque, batch=64) for opaque in range(100)],
            "send a batch of 512": [send(opaque, batch=512) for opaque in range(20)],
            "pull 32": [pull(32)] * 500,
            "pull 256": [pull(256)] * 200,
        }
        for name, frames in kinds.items():
            best = min(machine.serve(frames) for _ in range(ROUNDS))
            print(f"{name:>20}  {best:8.1f} µs")
        print(f"{'index a message':>20}  {machine.index():8.1f} µs")
        machine.store.close()


async def drive(address: str, *, count: int, window: int) -> None:
    """Send over one connection with at most `window` unanswered sends."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    decoder, sent, answered = FrameDecoder(), 0, 0
    frames = [send(opaque) for opaque in range(count)]
    while answered < count:
        while sent < count and sent - answered < window:
            writer.write(frames[sent])
            sent += 1
        for reply in decoder.receive_data(await reader.read(1 << 18)):
            assert reply.code == 0, reply.remark
            answered += 1
    writer.close()


def measure_sockets(flush: str, *, connections: int, window: int, count: int) -> None:
    """Print the rate and the server's processor time for each message."""

    async def run(address: str) -> None:
        await asyncio.gather(
            *[drive(address, count=count, window=window) for _ in range(connections)]
        )

    with EmbeddedCluster(flush="sync" if flush == "sync" else "async") as cluster:
        cluster.create_topic("T", 8)
        asyncio.run(run(cluster.broker))
        cpu, begin = processor_seconds(cluster.pid), time.perf_counter()
        asyncio.run(run(cluster.broker))
        seconds = time.perf_counter() - begin
        cpu = processor_seconds(cluster.pid) - cpu
        total = connections * count
        print(
            f"{flush:>6} flush, {connections} connections, {window:>3} unanswered each:"
            f"  {total / seconds:8.0f}/s  {cpu / total * 1e6:6.1f} µs of the server"
        )


def processor_seconds(pid: int) -> float:
    """Return the processor seconds of a process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def main() -> None:
    """Run both parts."""
    measure_machine()
    for flush in ("sync", "async"):
        measure_sockets(flush, connections=1, window=1, count=500)
        measure_sockets(flush, connections=8, window=64, count=4_000)


if __name__ == "__main__":
    main()
