"""What a broker costs as it grows: `python benchmarks/scale.py [PART ...]`.

    python benchmarks/scale.py [--millions N] [--out DIRECTORY] [restart ...]

Each part starts brokers of its own, in processes of their own, and writes its rows into
`scale.json` and `scale.md`; parts that do not run keep their rows. What is compared is processor
time of the broker's process from its first instruction on, interpreter and imports included.

- `restart`: starts after a clean stop and after a kill, with `--millions` of messages.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, encode_frame
from sparrowmq.protocol.record import BatchEntry, encode_batch
from sparrowmq.testing import EmbeddedCluster

ROOT = Path(__file__).resolve().parents[1]
BODY = bytes(128)
BATCH_COUNT = 100
QUEUES = 8
# Batches under way at once.
_WINDOW = 16
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Row(NamedTuple):
    """One figure: what was measured, the figure with its unit, and the aim, "" for none."""

    what: str
    figure: str
    aim: str = ""


def cpu_s(pid: int) -> float:
    """Return the processor seconds that a process has taken since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_mb(pid: int) -> float:
    """Return how much memory a process has in RAM."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Pipe:
    """One connection, over which prepared requests go as fast as they are answered."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._decoder = FrameDecoder()

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def run(self, frames: list[bytes], count: int, *, window: int = _WINDOW) -> None:
        """Send `count` requests, the frames in turn, with at most `window` under way."""
        sent = answered = 0
        while answered < count:
            ahead = min(count, answered + window) - sent
            if ahead > 0:
                data = b"".join(frames[(sent + n) % len(frames)] for n in range(ahead))
                self._socket.sendall(data)
                sent += ahead
            for answer in self._decoder.receive_data(self._socket.recv(1 << 20)):
                if answer.code != 0:
                    raise SystemExit(f"a request was answered by {answer.code}: {answer.remark}")
                answered += 1


def send_frames(topic: str, *, batch: int = 0) -> list[bytes]:
    """Return a send to each queue of a topic, of a batch if asked."""
    properties = "UNIQ_KEY\x017F00000100096B1A3D5C2768F7848F01\x02TAGS\x01UA"
    body = encode_batch([BatchEntry(0, BODY, properties)] * batch) if batch else BODY
    frames = []
    for queue in range(QUEUES):
        fields = {"a": "GID_p", "b": topic, "c": "TBW102", "d": "8", "e": str(queue), "f": "0"}
        fields |= {"g": "1795252251857", "h": "0", "i": "" if batch else properties, "j": "0"}
        fields |= {"k": "false", "m": "true" if batch else "false"}
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        command = RemotingCommand(code=code, ext_fields=fields, body=body, opaque=queue)
        frames.append(encode_frame(command))
    return frames


def fill(cluster: EmbeddedCluster, topic: str, millions: float) -> None:
    """Send messages in batches."""
    cluster.create_topic(topic, queues=QUEUES)
    count = int(millions * 1e6) // BATCH_COUNT
    with Pipe(cluster.broker) as pipe:
        pipe.run(send_frames(topic, batch=BATCH_COUNT), count)


# --- the parts ------------------------------------------------------------------------------------


def measure_restart(millions: float) -> list[Row]:
    """Start after a clean stop, and after a kill."""
    with tempfile.TemporaryDirectory() as directory:
        with EmbeddedCluster(Path(directory, "empty"), flush="async") as empty:
            idle_s = cpu_s(empty.pid)
        with EmbeddedCluster(Path(directory, "full"), flush="async") as cluster:
            fill(cluster, "T", millions)
            before_s = cpu_s(cluster.pid)
            cluster.restart()
            clean_s = cpu_s(cluster.pid)
            cluster.kill()
            cluster.start()
            killed_s = cpu_s(cluster.pid)
            cluster.stop()
    name = f"{millions:g} million messages"
    return [
        Row("start with an empty store", f"{idle_s:.2f} CPU-s"),
        Row(f"start after a clean stop, {name}", f"{clean_s:.2f} CPU-s", "≤ 1 CPU-s"),
        Row(f"start after a kill at rest, {name}", f"{killed_s:.2f} CPU-s"),
        Row("taking one million in batches of 100", f"{before_s / millions:.2f} CPU-s"),
    ]


PARTS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "restart": lambda arguments: measure_restart(arguments.millions),
}


def render(result: dict[str, list[list[str]]]) -> str:
    """Return the rows of all parts as a table."""
    lines = ["| what | measured | aim |", "|---|---|---|"]
    for part in PARTS:
        lines += [f"| {' | '.join(row)} |" for row in result.get(part, [])]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--millions", type=float, default=10)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    path = arguments.out / "scale.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    for part in arguments.parts or PARTS:
        result[part] = PARTS[part](arguments)
        result["date"] = f"{datetime.now(UTC):%Y-%m-%d}"
        arguments.out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
        (arguments.out / "scale.md").write_text(render(result))
    print(render(result), end="")


if __name__ == "__main__":
    main()
