"""The server of a name server."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sparrowmq.nameserver import server as servers
from sparrowmq.nameserver.name_server import KVConfig, NameServer
from sparrowmq.nameserver.server import NameServerServer
from sparrowmq.serving.connections import Output
from sparrowmq.serving.remoting_server import bind
from sparrowmq.serving.requests import Refusal
from sparrowmq.simulation.faulty_disk import PowerCut, SimulatedStorage


async def test_a_failed_tick_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = 0
    again = asyncio.Event()

    def tick(_: NameServer, *, now_ms: int) -> list[Output]:
        nonlocal ticks
        ticks += 1
        if ticks == 2:
            raise MemoryError
        if ticks == 3:
            again.set()
        return []

    failures: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: failures.append(context["exception"])
    )
    monkeypatch.setattr(NameServer, "tick", tick)
    monkeypatch.setattr(servers, "TICK_MS", 1)
    server = NameServerServer(tmp_path)
    await server.start(bind("127.0.0.1", 0))
    async with asyncio.timeout(30):
        await again.wait()
    await server.stop()

    assert [type(failure) for failure in failures] == [MemoryError]


def put(server: NameServerServer, key: str, value: str = "v") -> None:
    texts = server._machine.kv_config.put("n", key, value)
    assert texts is not None
    server._machine.replace_texts(texts)


def delete(server: NameServerServer, key: str) -> None:
    server._machine.replace_texts(server._machine.kv_config.delete("n", key))


async def test_a_change_that_a_full_disk_keeps_from_its_file_is_refused_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def have_no_room(*_: object, **_settings: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    server = NameServerServer(tmp_path)
    put(server, "before")
    with monkeypatch.context() as full:
        full.setattr(servers, "write_config", have_no_room)
        for change in (put, delete):
            with pytest.raises(Refusal, match=r"not made.*No space left on device"):
                change(server, "before" if change is delete else "meanwhile")
    found = [server._machine.kv_config.find("n", key) for key in ("before", "meanwhile")]
    put(server, "after")
    await server.stop()

    assert found == ["v", None]
    kept = KVConfig.decode((tmp_path / servers.KV_CONFIG_FILE).read_bytes())
    assert kept.table("n") == {"before": "v", "after": "v"}


async def test_first_write_after_a_damage_keeps_the_backup(tmp_path: Path) -> None:
    path, backup = tmp_path / servers.KV_CONFIG_FILE, tmp_path / f"{servers.KV_CONFIG_FILE}.bak"
    for number in range(3):
        server = NameServerServer(tmp_path)
        put(server, str(number))
        await server.stop()
    kept = backup.read_bytes()
    path.write_bytes(b"{")

    server = NameServerServer(tmp_path)
    put(server, "3")
    assert backup.read_bytes() == kept
    whole = path.read_bytes()
    put(server, "4")
    assert backup.read_bytes() == whole
    await server.stop()


@pytest.mark.parametrize("seed", range(4))
def test_a_deletion_that_is_repeated_after_a_kill_holds_across_a_power_cut(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimulatedStorage(Random(seed))
    monkeypatch.setattr(servers, "FileStorage", lambda _: disk)
    root: Any = None
    first = NameServerServer(root)
    for value in ("1", "2"):
        put(first, "k", value)
    sync, is_killed = disk.sync_directory, False

    def die(path: str) -> None:
        raise PowerCut

    # The process is killed once the file has its name, and before the deletion is acknowledged.
    disk.sync_directory = die  # type: ignore[method-assign]
    try:
        delete(first, "k")
    except PowerCut:
        is_killed = True
    disk.sync_directory = sync  # type: ignore[method-assign]
    disk.kill()

    second = NameServerServer(root)
    delete(second, "k")
    disk.lose_power()

    assert is_killed
    assert NameServerServer(root)._machine.kv_config.find("n", "k") is None
