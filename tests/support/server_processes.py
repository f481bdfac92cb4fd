"""Several brokers beside one name server: `sparrowmq up --brokers 2` as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen


class Servers:
    """One `sparrowmq up --brokers 2`."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self._log = (data.parent / f"{data.name}.log").open("ab")
        ports = ("--nameserver-port", "0", "--broker-port", "0", "--health-port", "0")
        disk = ("--disk-force-percent", "100", "--disk-full-percent", "100")
        command = [sys.executable, "-m", "sparrowmq.hosting", "--brokers", "2"]
        self.process = subprocess.Popen(
            [*command, *ports, *disk, "--data", str(data), *options],
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        self.brokers: list[str] = re.findall(r" broker=(\S+)", line)
        self.name_server = "".join(re.findall(r" nameserver=(\S+)", line))
        self.health = "".join(re.findall(r" health=(\S+)", line))

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    def children(self) -> dict[str, int]:
        """The processes of brokers that run, by their store's directory."""
        pid = self.process.pid
        found = {}
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            for fd in Path(f"/proc/{child}/fd").iterdir():
                try:
                    target = Path(os.readlink(fd))
                except FileNotFoundError:
                    continue
                if target.name == "lock":
                    found[target.parent.name] = int(child)
        return found

    def is_ready(self) -> tuple[bool, list[str]]:
        try:
            with urlopen(f"http://{self.health}/ready", timeout=10):
                return True, []
        except HTTPError as error:
            with error:
                return False, json.load(error)["reasons"]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.close()
        return code

    def close(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()
