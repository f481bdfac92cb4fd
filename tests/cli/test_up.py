"""The servers as processes: what they print, how they stop, what they refuse."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.effects import invoke
from sparrowmq.protocol import speedups
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "sparrowmq"]
FREE_PORTS = ["--nameserver-port", "0", "--broker-port", "0"]
Start = Callable[..., subprocess.Popen[str]]
StartCommand = Callable[[list[str]], subprocess.Popen[str]]


@pytest.fixture
def start_command() -> Iterator[StartCommand]:
    processes: list[subprocess.Popen[str]] = []

    def run(command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def start(start_command: StartCommand) -> Start:
    return lambda *options: start_command([*COMMAND, *options])


def ready(process: subprocess.Popen[str]) -> dict[str, str]:
    """Wait for the line that a server prints when it serves."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready "), process.communicate()
    return dict(part.split("=") for part in line.split()[1:])


def finish(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def call(address: str, code: int, ext_fields: dict[str, str] | None = None) -> RemotingCommand:
    driver = BlockingDriver()
    try:
        request = RemotingCommand(code=code, ext_fields=ext_fields)
        return driver.run(invoke(address, request, timeout_ms=5_000))
    finally:
        driver.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_prints_one_line_serves_and_stops_cleanly(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    process = start("up", *FREE_PORTS, "--data", str(tmp_path))
    assert process.stdout is not None
    line = process.stdout.readline()

    pattern = r"ready nameserver=(127\.0\.0\.1:\d+) broker=(127\.0\.0\.1:\d+)\n"
    found = re.fullmatch(pattern, line)
    assert found is not None, line
    route = call(found[1], RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
    info = call(found[2], RequestCode.GET_BROKER_RUNTIME_INFO)
    code, rest, _ = finish(process, number)

    assert (route.code, info.code) == (0, 0)
    assert found[2].encode() in (route.body or b"")
    assert (code, rest) == (0, "")
    assert (tmp_path / "store" / "checkpoint").is_file()
    assert not (tmp_path / "store" / "abort").exists()
    assert (tmp_path / "nameserver").is_dir()


def test_up_says_first_that_the_extension_in_c_is_missing(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = []
    for name, interface in (("other", 0), ("wanted", speedups.INTERFACE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sparrowmq_speedups.py").write_text(f"INTERFACE = {interface}")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / name))
        process = start("up", *FREE_PORTS, "--data", str(tmp_path / "data"))
        ready(process)
        lines.append(finish(process, signal.SIGTERM)[2].splitlines()[0])

    assert f"the extension in C has interface 0, and {speedups.INTERFACE} is needed" in lines[0]
    assert "pip install ./speedups" in lines[0]
    assert "extension" not in lines[1]


def test_second_start_on_a_directory_in_use_is_refused(start: Start, tmp_path: Path) -> None:
    ready(start("up", *FREE_PORTS, "--data", str(tmp_path)))

    second = start("up", *FREE_PORTS, "--data", str(tmp_path))
    out, err = second.communicate(timeout=60)

    assert (second.returncode, out) == (1, "")
    (line,) = [line for line in err.splitlines() if line.startswith("sparrowmq: ")]
    assert f"'{tmp_path / 'nameserver'}' is in use" in line
    assert "choose another directory" in line
    assert "Traceback" not in err


@pytest.mark.parametrize("option", ["--nameserver-port", "--broker-port"])
def test_port_in_use_is_refused(start: Start, tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"--nameserver-port": "0", "--broker-port": "0", option: str(port)}
        words = [word for pair in ports.items() for word in pair]
        process = start("up", *words, "--data", str(tmp_path))
        out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (1, "")
    server = {"--nameserver-port": "name server", "--broker-port": "broker"}[option]
    assert f"sparrowmq: the {server} cannot listen on 127.0.0.1:{port}: " in err
    assert f"choose another port by {option} " in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "--insecure"),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["--advertise", "name"], "not an IP address"),
        (["--flush", "maybe"], "maybe"),
        (["--duplicate-client-id", "perhaps"], "perhaps"),
        (["--grpc-port", "70000"], "65535"),
        (["--broker-name", "a b"], "--broker-name 'a b' must"),
        (["--no-such-option"], "no-such-option"),
    ],
)
def test_wrong_option_is_exit_code_2_and_says_why(
    start: Start, tmp_path: Path, options: list[str], words: str
) -> None:
    process = start("up", *FREE_PORTS, "--data", str(tmp_path), *options)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["nameserver", "--port", "70000"], "65535"),
        (["broker", "--port", "-1"], "0"),
        (["broker", "--nameserver", "ns-1"], "'ns-1' is not an address"),
        (["broker", "--nameserver", ";"], "name_server is empty"),
    ],
)
def test_wrong_option_of_a_single_server_is_exit_code_2(
    start: Start, tmp_path: Path, command: list[str], words: str
) -> None:
    process = start(*command, "--data", str(tmp_path))
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


def test_data_that_is_no_directory_is_named(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    process = start("up", *FREE_PORTS, "--data", str(file))
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (1, "")
    assert f"{file}" in err
    assert "choose a --data" in err
    assert "Traceback" not in err


def test_insecure_lets_all_interfaces_be_listened_on(start: Start, tmp_path: Path) -> None:
    options = ("--host", "0.0.0.0", "--insecure", "--advertise", "127.0.0.1")
    process = start("up", *FREE_PORTS, "--data", str(tmp_path), *options)

    addresses = ready(process)

    assert addresses["broker"].startswith("127.0.0.1:")
    assert call(addresses["broker"], RequestCode.GET_BROKER_RUNTIME_INFO).code == 0
    assert finish(process, signal.SIGTERM)[0] == 0


def test_name_server_and_broker_run_in_processes_of_their_own(start: Start, tmp_path: Path) -> None:
    names = start("nameserver", "--port", "0", "--data", str(tmp_path / "n"))
    name_server = ready(names)["nameserver"]
    options = ("--port", "0", "--nameserver", name_server, "--data", str(tmp_path / "b"))
    served = start("broker", *options, "--broker-name", "broker-z", "--flush", "async")
    broker = ready(served)["broker"]

    route = call(name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "broker-z"})
    stopped = finish(served, signal.SIGTERM)
    gone = call(name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "broker-z"})

    assert broker.encode() in (route.body or b"")
    assert (route.code, stopped[0], gone.code) == (0, 0, 17)
    assert finish(names, signal.SIGTERM)[0] == 0


def test_up_stops_when_the_holder_of_its_standard_input_goes(start: Start, tmp_path: Path) -> None:
    process = start("up", *FREE_PORTS, "--data", str(tmp_path), "--stop-with-stdin")
    ready(process)
    assert process.stdin is not None

    process.stdin.close()
    process.stdin = None
    process.communicate(timeout=60)

    assert process.returncode == 0


def test_data_directory_is_for_its_owner_alone(start: Start, tmp_path: Path) -> None:
    process = start("up", *FREE_PORTS, "--data", str(tmp_path))
    ready(process)
    finish(process, signal.SIGTERM)

    for directory in ("store", "nameserver"):
        assert (tmp_path / directory).stat().st_mode & 0o777 == 0o700
    for name in ("store/config/topics.json", "store/lock"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_help_names_every_command() -> None:
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True)

    for name in ("up", "nameserver", "broker"):
        assert re.search(rf"^\W*{name}\b", done.stdout, re.M), done.stdout


def limited(limit: str, *options: str) -> list[str]:
    """Return the command of a server under a shell's `ulimit`."""
    return ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", *COMMAND, *options]


def send(driver: BlockingDriver, address: str, topic: str) -> RemotingCommand:
    """Send one message to a topic that may be new."""
    fields = {"a": "P", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0"}
    request = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=b"x")
    return driver.run(invoke(address, request, timeout_ms=30_000))


@pytest.fixture
def driver() -> Iterator[BlockingDriver]:
    driver = BlockingDriver()
    yield driver
    driver.close()


@pytest.fixture
def crowd() -> Iterator[Callable[[str, int], None]]:
    """Opens idle connections to an address."""
    opened: list[socket.socket] = []

    def open_connections(address: str, count: int) -> None:
        host, _, port = address.rpartition(":")
        opened.extend(socket.create_connection((host, int(port))) for _ in range(count))

    yield open_connections
    for connection in opened:
        connection.close()


def test_more_connections_than_descriptors_stop_no_message(
    start_command: StartCommand,
    driver: BlockingDriver,
    crowd: Callable[[str, int], None],
    tmp_path: Path,
) -> None:
    command = limited("-n 256", "up", *FREE_PORTS, "--data", str(tmp_path))
    addresses = ready(start_command(command))
    before = send(driver, addresses["broker"], "before").code
    crowd(addresses["nameserver"], 200)
    crowd(addresses["broker"], 200)

    codes = [send(driver, addresses["broker"], f"topic{number}").code for number in range(30)]

    assert before == 0
    assert codes == [0] * 30


def test_server_takes_more_connections_than_the_soft_limit_on_descriptors(
    start_command: StartCommand,
    driver: BlockingDriver,
    crowd: Callable[[str, int], None],
    tmp_path: Path,
) -> None:
    command = limited("-S -n 256", "up", *FREE_PORTS, "--data", str(tmp_path))
    addresses = ready(start_command(command))
    crowd(addresses["broker"], 300)

    assert send(driver, addresses["broker"], "T").code == 0


def test_option_goes_before_variable_before_file_before_default(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "broker.conf"
    names = {"brokerName": "of-file", "brokerClusterName": "of-file", "fileReservedTime": "7"}
    file.write_text("".join(f"{name} = {value}\n" for name, value in names.items()))
    monkeypatch.setenv("SPARROWMQ_CONFIG", str(file))
    monkeypatch.setenv("SPARROWMQ_BROKER_NAME", "of-variable")
    monkeypatch.setenv("SPARROWMQ_CLUSTER_NAME", "of-variable")
    options = ("--data", str(tmp_path / "data"), "--broker-name", "of-option")
    broker = ready(start("up", *FREE_PORTS, *options))["broker"]

    said = call(broker, RequestCode.GET_BROKER_CONFIG).body

    lines = set((said or b"").decode().splitlines())
    assert {"brokerName=of-option", "brokerClusterName=of-variable"} <= lines
    assert {"fileReservedTime=7", "deleteWhen=04"} <= lines


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SPARROWMQ_CONFIG", "/no/such/file", "/no/such/file cannot be read"),
        ("SPARROWMQ_RETENTION_HOUR", "4", "did you mean SPARROWMQ_RETENTION_HOURS"),
    ],
)
def test_wrong_file_or_variable_is_exit_code_2_but_for_subcommands(
    start: Start, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    out, err = start("broker", "--port", "0").communicate(timeout=60)
    looked = start("broker", "ls", "--nameserver", "127.0.0.1:1")
    _, other = looked.communicate(timeout=60)

    assert ("", f"sparrowmq: {err.removeprefix('sparrowmq: ')}") == (out, err)
    assert words in err
    assert (looked.returncode, words in other) == (3, False)
