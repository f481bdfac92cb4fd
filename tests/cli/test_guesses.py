"""First guesses, as our commands."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer.main
from typer.core import TyperGroup

from sparrowmq.cli.guesses import GUESSES, translate_guess
from sparrowmq.cli.main import build_app, main
from sparrowmq.testing import EmbeddedCluster


@pytest.mark.parametrize(
    ("guess", "ours"),
    [
        ("doctor GID_board --json", "rebalance doctor GID_board --json"),
        ("lag", "group ls"),
        ("lag --json", "group ls --json"),
        ("lag GID_board", "group lag GID_board"),
        ("simulate --rooms 5", "rebalance simulate --rooms 5"),
        ("context add prod", "context set prod"),
        ("tail -n 5 flights", "tail --last 5 flights"),
        ("tail flights -f -n 5", "tail flights -f --last 5"),
        ("tail flights -n -1", "tail flights --last -1"),
    ],
)
def test_guess_becomes_a_command(guess: str, ours: str) -> None:
    assert translate_guess(guess.split()) == ours.split()


@pytest.mark.parametrize(
    "line", ["tail flights -n ns-1:9876", "tail flights", "msg get", "ls", "nothing"]
)
def test_what_is_no_guess_stays(line: str) -> None:
    assert translate_guess(line.split()) is None


@pytest.mark.parametrize("words", GUESSES.values(), ids=GUESSES)
def test_every_guess_is_of_a_command_that_exists(words: tuple[str, ...]) -> None:
    command = typer.main.get_command(build_app())
    for word in words:
        assert isinstance(command, TyperGroup)
        command = command.commands[word]

    assert command.help


@pytest.mark.slow
def test_guess_runs_and_its_command_is_named(shared_cluster: EmbeddedCluster) -> None:
    address = shared_cluster.name_server
    command = [sys.executable, "-m", "sparrowmq", "topics", "-n", address]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith("sparrowmq: topics is: sparrowmq topic ls")


def test_second_word_of_a_command_may_be_a_guess_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sparrowmq", "msg", "show", "--help"])

    with pytest.raises(SystemExit) as ended:
        main()

    assert (ended.value.code or 0) == 0
    said = capsys.readouterr()
    assert "msg show is: sparrowmq msg get" in said.err
    assert "Show the message with an id" in said.out
