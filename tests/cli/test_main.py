"""The command line without the packages that it needs."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import sparrowmq
from sparrowmq.cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED
from sparrowmq.cli.main import _replace_closed_streams, build_app

pytestmark = pytest.mark.slow

RUN = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
sys.argv = ["sparrowmq", *{arguments!r}]
from sparrowmq.cli.main import main
main()
"""

RUN_HELP = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
import typer.main
from typer.testing import CliRunner
from sparrowmq.cli.main import COMMANDS, build_app
def ask(path, command):
    found = CliRunner().invoke(build_app(), [*path, "--help"])
    print(*path)
    assert found.exit_code == 0, (path, found.exception)
    for name, each in getattr(command, "commands", {{}}).items():
        ask([*path, name], each)
for name in COMMANDS:
    ask([name], typer.main.get_command(build_app()).commands[name])
"""


RUN_INTERRUPTED = """
import signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                # As some modules in C do.
                raise ImportError
sys.modules.pop({module!r}, None)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["sparrowmq", "ls"]
from sparrowmq.__main__ import main
main()
"""


def run(missing: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    program = RUN.format(missing=missing, arguments=arguments)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("missing", "command", "words"),
    [
        ("typer", "up", "typer is not installed; pip install '.[cli]' in a checkout"),
        ("rich", "demo", "rich is not installed; pip install '.[demo]' in a checkout"),
    ],
)
def test_missing_package_is_one_line_that_says_what_to_install(
    missing: str, command: str, words: str
) -> None:
    found = run([missing], command)

    assert (found.returncode, found.stdout, found.stderr) == (1, "", f"sparrowmq: {words}\n")


def test_help_lists_every_command_and_imports_none_of_them() -> None:
    # Of these, the metadata of packages take a seventh of the time of what is left.
    slow = ["pyspark", "rich.console", "msgspec", "asyncio", "importlib.metadata"]
    found = run(slow, "--help")

    assert (found.returncode, found.stderr) == (0, "")
    names = ["up", "nameserver", "broker", "demo", "pipeline", "rebalance", "snapshot"]
    assert [name for name in names if f"  {name} " not in found.stdout] == []


def test_help_of_every_command_needs_no_extra_but_the_command_lines_own() -> None:
    extras = ["uvicorn", "starlette", "jinja2", "pyspark", "pyarrow", "prometheus_client", "grpc"]
    program = RUN_HELP.format(missing=extras)

    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (found.returncode, found.stderr) == (0, "")
    assert len(found.stdout.splitlines()) > 60


def test_lists_of_commands_cut_no_sentence() -> None:
    app, runner = build_app(), CliRunner()
    for group in ("topic", "group", "rebalance", "broker", "store", "msg", "dlq", "acl"):
        found = runner.invoke(app, [group, "--help"])

        assert "..." not in found.stdout.partition("Commands:")[2], group


def test_examples_of_help_are_taken_as_they_are_printed(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    for name in ("secret", "flights.jsonl", "bird.png", "fixed.json", "order.json"):
        (tmp_path / name).write_bytes(b"x")
    app = build_app()

    examples = list(examples_of(typer.main.get_command(app)))
    codes = {shlex.join(each): CliRunner().invoke(app, each).exit_code for each in examples}

    # Nothing is wrong but that no name server is there.
    assert len(codes) > 30
    assert {each: code for each, code in codes.items() if code != EXIT_FAILED} == {}


def examples_of(command: Any) -> Iterator[list[str]]:
    """Return the arguments of the examples in the help of commands that look at a cluster."""
    for each in getattr(command, "commands", {}).values():
        yield from examples_of(each)
    if not any("--timeout" in option.opts for option in command.params):
        return
    for line in (command.help or "").partition("Examples:")[2].splitlines():
        words = shlex.split(line, comments=True)
        # A history of the night is not there either.
        if "sparrowmq" in words and "--since" not in words:
            words = words[words.index("sparrowmq") + 1 :]
            yield list(itertools.takewhile(lambda word: word not in ("|", "||", ">"), words))


def test_a_command_of_several_lists_them_if_none_is_given() -> None:
    app, runner = build_app(), CliRunner()
    groups = ("topic", "group", "rebalance", "store", "msg", "dlq", "acl", "context", "pipeline")

    shown = {group: runner.invoke(app, [group]).output for group in groups}

    assert [group for group, text in shown.items() if "Commands:" not in text] == []


def test_a_mistyped_command_is_answered_by_the_nearest() -> None:
    found = run([], "rebalence")

    assert found.returncode == 2
    assert "No such command 'rebalence'. Did you mean 'rebalance'?" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("-n", "h:1", "topic", "ls", "--all"), "sparrowmq topic ls --all -n h:1"),
        (("--json", "ls"), "sparrowmq ls --json"),
        (("topic", "--json", "show", "a b"), "sparrowmq topic show 'a b' --json"),
    ],
)
def test_options_before_the_command_are_answered_by_the_right_order(
    arguments: tuple[str, ...], meant: str
) -> None:
    found = CliRunner().invoke(build_app(), arguments, prog_name="sparrowmq")

    assert found.exit_code == 2
    assert f"{meant}\n" in found.stderr
    assert "No such option: " in found.stderr


def test_version_is_that_of_the_package() -> None:
    found = run([], "--version")

    assert found.stdout == f"sparrowmq {sparrowmq.__version__}\n"
    assert sparrowmq.__version__ == version("sparrowmq")


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls", "-n", "127.0.0.1:1", "--nameserver", "127.0.0.1:2"),
        ("topic", "create", "T", "--queues", "4", "-n", "127.0.0.1:1", "-n", "127.0.0.1:2"),
        ("broker", "--data", "a", "--data", "b"),
        ("up", "--data", "a", "--data", "b"),
        ("dash", "--port", "1", "--port", "2"),
    ],
)
def test_an_option_with_one_value_is_refused_if_it_is_given_twice(
    arguments: tuple[str, ...],
) -> None:
    found = CliRunner().invoke(build_app(), arguments)

    assert found.exit_code == 2
    assert "is given 2 times and takes one value: " in found.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("up", "--retention-hours", "48h"),
            "--retention-hours is '48h'; give a whole number from 0 to 876000, without a unit",
        ),
        (
            ("up", "--broker-port", "65536"),
            "--broker-port is '65536'; give a whole number from 0 to 65535\n",
        ),
        (("up", "--delete-when", "25"), "--delete-when is '25'; give hours of the day, as '04'"),
        (("topic", "create", "T", "-q", "x"), "--queues is 'x'; give a whole number from 1 on"),
        (("ls", "--timeout", "2 s"), "--timeout is '2 s'; give a number from 0.1 to 60.0, without"),
        (("ls", "--timeout", "nan"), "--timeout is 'nan'; give a number from 0.1 to 60.0\n"),
        (("group", "lag", "G", "--interval", "1e999"), "is '1e999'; give a number from 0.5 on\n"),
        (("group", "ls", "--interval", "601"), "is '601'; give a number from 0.0 to 600.0\n"),
        (("rebalance", "watch", "G", "--count", "9" * 20), "a whole number from 0 to 1000000000\n"),
        (("up", "--data", ""), "--data is empty; give the directory for all data, or leave"),
        (("ls", "-n", ""), "--nameserver is empty; "),
        (("ls", "--context", " "), "--context is empty; "),
        (("topic", "create", "TBW102"), "'TBW102' is reserved"),
    ],
)
def test_wrong_values_are_named_with_what_to_give(arguments: tuple[str, ...], words: str) -> None:
    found = CliRunner().invoke(build_app(), arguments)

    assert found.exit_code == 2
    assert words in found.stderr


def test_flags_and_lists_may_be_given_twice() -> None:
    options = ("--json", "--json", "--group", "a", "--group", "b", "-n", "127.0.0.1:1")
    found = CliRunner().invoke(build_app(), ["check", *options])

    assert (found.exit_code, "127.0.0.1:1" in found.stderr) == (3, True)


@pytest.mark.parametrize(
    "module", ["typing", "sparrowmq.cli.main", "typer", "sparrowmq.cli.cluster"]
)
def test_interrupt_while_modules_are_loaded_ends_quietly(module: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", RUN_INTERRUPTED.format(module=module)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (found.returncode, found.stdout, found.stderr) == (EXIT_INTERRUPTED, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [("--help",), ("rebalance", "simulate", "--queues", "4")])
def test_output_to_a_full_disk_is_one_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "sparrowmq", *arguments], stdout=full, stderr=-1, text=True
        )

    expected = "sparrowmq: cannot write to stdout: No space left on device\n"
    assert (found.returncode, found.stderr) == (3, expected)


def in_shell(line: str) -> tuple[int, str, str]:
    """Run a line of the shell, in which $smq is the command."""
    shell = ["bash", "-c", line.replace("$smq", f"{sys.executable} -m sparrowmq")]
    found = subprocess.run(shell, capture_output=True, text=True)
    return found.returncode, found.stdout, found.stderr


def test_output_without_a_reader_is_silent() -> None:
    line = "$smq rebalance simulate --queues 4 | true; exit ${PIPESTATUS[0]}"

    assert in_shell(line) == (1, "", "")


@pytest.mark.parametrize("place", [">&-", "1</dev/null"])
@pytest.mark.parametrize("command", ["rebalance simulate --queues 4", "--version"])
def test_output_that_cannot_be_written_is_one_line(command: str, place: str) -> None:
    expected = "sparrowmq: cannot write to stdout: Bad file descriptor\n"

    assert in_shell(f"$smq {command} {place}") == (3, "", expected)


def test_closed_streams_end_no_command_that_does_not_need_them() -> None:
    told = in_shell("$smq simulate --queues 4 --json 2>&-")
    sent = in_shell("$smq send T -n 127.0.0.1:1 <&-")

    # What is said on stderr has not come into the JSON.
    assert (told[0], told[1][:1]) == (0, "{")
    assert (sent[0], "cannot connect" in sent[2]) == (3, True)


@pytest.mark.parametrize(
    ("line", "is_server"),
    [("up", True), ("broker --data d", True), ("broker ls", False), ("ls", False), ("", False)],
)
def test_server_serves_without_a_stdout(
    line: str, is_server: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)

    _replace_closed_streams(line.split())

    with sys.stdout, nullcontext() if is_server else pytest.raises(OSError, match="Bad file"):
        try:
            print("ready", flush=True)
        finally:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def test_missing_package_of_a_guessed_command_is_that_of_the_command() -> None:
    found = run(["pyspark"], "backlog", "--snapshots", "a", "--out", "b")

    assert "pyspark is not installed; pip install '.[cli,spark]' in a checkout" in found.stderr


def test_characters_that_the_encoding_lacks_are_escaped() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "sparrowmq", "rebalance", "simulate", "--queues", "4"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )

    assert (found.returncode, found.stderr) == (0, "")
    assert "largest \\u2212 smallest share" in found.stdout
