"""What peers can make a broker's process take; how much that is, the system says (Linux)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.effects import invoke
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, encode_frame
from sparrowmq.testing import EmbeddedCluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc"),
]

MIB = 1 << 20
SEND = {"a": "P", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0"}
PULL = {
    "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "64",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
    "subscription": "*",
}  # fmt: skip


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(flush="async") as cluster:
        yield cluster


def peak_bytes(cluster: EmbeddedCluster) -> int:
    """Return the most memory the servers' process has had at any time."""
    status = Path(f"/proc/{cluster.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def ask(cluster: EmbeddedCluster, command: RemotingCommand) -> RemotingCommand:
    driver = BlockingDriver()
    try:
        return driver.run(invoke(cluster.broker, command, timeout_ms=30_000))
    finally:
        driver.close()


def test_unread_pulls_of_two_connections_take_little_memory(cluster: EmbeddedCluster) -> None:
    send = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, ext_fields=SEND, body=bytes(MIB // 8))
    for _ in range(36):
        assert ask(cluster, send).code == 0
    pull = RemotingCommand(code=RequestCode.PULL_MESSAGE, ext_fields=PULL)
    assert len(ask(cluster, pull).body or b"") > 3.5 * MIB
    before = peak_bytes(cluster)
    host, _, port = cluster.broker.rpartition(":")

    peers = [socket.create_connection((host, int(port))) for _ in range(2)]
    decoders = [FrameDecoder() for _ in peers]
    for peer, decoder in zip(peers, decoders, strict=True):
        peer.sendall(b"".join([encode_frame(pull)] * 300))
        # The first answer is on its way: the broker has begun with these requests.
        decoder.feed(peer.recv(1))
    for _ in range(50):
        info = RemotingCommand(code=RequestCode.GET_BROKER_RUNTIME_INFO)
        assert ask(cluster, info).code == 0

    assert peak_bytes(cluster) - before <= 64 * MIB
    for peer, decoder in zip(peers, decoders, strict=True):
        count = 0
        while count < 10:
            decoder.feed(peer.recv(MIB))
            while (answer := decoder.next_command()) is not None:
                assert len(answer.body or b"") > 3.5 * MIB
                count += 1
        peer.close()
