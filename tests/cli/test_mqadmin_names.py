"""mqadmin's commands and options, as ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from sparrowmq.cli.main import build_app
from sparrowmq.cli.mqadmin import ALIASES, Alias, WrongOption, translate
from sparrowmq.testing import EmbeddedCluster

HOWTOS = Path(__file__).parents[2] / "docs/howto"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("topicList -n a:1", "topic ls --all --nameserver a:1"),
        ("topicRoute -t T", "topic show T"),
        ("topicRoute --topic T --namesrvAddr a:1 --json", "topic show T --nameserver a:1 --json"),
        (
            "updateTopic -c C -t T -r 8 -w 8",
            "topic update T --cluster C --read-queues 8 --write-queues 8",
        ),
        ("consumerProgress", "group ls"),
        ("consumerProgress -g G -t T", "group lag G --topic T"),
        ("consumerConnection --consumerGroup G", "group show G"),
        ("resetOffsetByTime -g G -t T -s now -f true", "group reset G --topic T --to latest"),
        ("resetOffsetByTime -g G -t T -s -1", "group reset G --topic T --to latest"),
        ("resetOffsetByTime -g G -t T -s 0", "group reset G --topic T --to earliest"),
        # April 1970: ours would take as many digits for an offset.
        ("resetOffsetByTime -g G -t T -s 9999999999", "group reset G --topic T --to earliest"),
        (
            "resetOffsetByTime -g G -t T -s 1700000000000",
            "group reset G --topic T --to 1700000000000",
        ),
        (
            "resetOffsetByTime -g G -t T -s 2026-01-31#12:30:00:250",
            "group reset G --topic T --to 2026-01-31T12:30:00.250",
        ),
        ("updateTopic -t T -p 2", "topic update T --perm w"),
        ("updateTopic -t T -p 4", "topic update T --perm r"),
        ("updateTopic -t T --perm=6", "topic update T --perm rw"),
        ("updateTopic -t T -p none", "topic update T --perm none"),
        ("queryMsgByKey -k K -t T", "msg find K --topic T"),
        ("sendMessage -p body -t T -k K -c A", "send T body --key K --tag A"),
        ("printMsg -t T", "tail T --from earliest"),
        ("setConsumeMode -c C -g G -t T -m POP", "group mode G --cluster C --topic T --mode POP"),
        ("deleteTopic -c C -t T --yes", "topic delete T --cluster C --yes"),
        ("deleteSubGroup --clusterName=C -g G", "group delete G --cluster C"),
        ("clusterList -c C", "broker ls"),
        ("topicRoute --timeout 5 -t T --tls-ca=c", "topic show T --timeout 5 --tls-ca=c"),
        ("consumerProgress --groupName=G --namesrvAddr=a:1", "group lag G --nameserver a:1"),
        ("sendMessage -t T -p -1 -k K", "send --key K -- T -1"),
    ],
)
def test_their_words_become_ours(theirs: str, ours: str) -> None:
    assert ours.split() == translate(theirs.split())


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ("topicRoute", "topicRoute needs -t; it takes -t, -n"),
        ("topicRoute T", "topicRoute takes options only, not 'T'"),
        ("topicRoute -t T --timeout 5 6", "topicRoute takes options only, not '6'"),
        ("topicRoute -x 1", "topicRoute has no option -x"),
        ("topicRoute -t", "option -t of topicRoute needs a value"),
        ("topicRoute -t A --topic B", "option --topic of topicRoute is given twice"),
    ],
)
def test_wrong_options_are_answered_by_the_right_ones(theirs: str, words: str) -> None:
    with pytest.raises(WrongOption, match=words):
        translate(theirs.split())


def options_of(words: Sequence[str]) -> tuple[set[str], int]:
    """The options of one of our commands, and how many arguments it takes."""
    command = typer.main.get_command(build_app())
    for word in words:
        assert isinstance(command, TyperGroup)
        found = command.commands[word]
        assert found is not None
        command = found
    parameters = command.params
    options = {name for each in parameters for name in each.opts if name.startswith("-")}
    return options, sum(not each.opts[0].startswith("-") for each in parameters)


@pytest.mark.parametrize("page", ["command-line.md", "command-line.zh.md"])
def test_the_page_names_every_alias(page: str) -> None:
    text = (HOWTOS / page).read_text()

    assert [name for name in sorted(ALIASES) if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", sorted(ALIASES))
def test_every_alias_leads_to_a_command_that_takes_what_it_is_given(name: str) -> None:
    alias: Alias = ALIASES[name]

    options, argument_count = options_of(alias.words)

    given = {option for option in alias.options.values() if option} | {"--nameserver"}
    given |= {word for word in alias.tail if word.startswith("-")}
    assert set() == given - options
    assert len(alias.arguments) <= argument_count


@pytest.mark.slow
def test_the_command_runs_and_says_what_it_is_called_here(
    shared_cluster: EmbeddedCluster,
) -> None:
    shared_cluster.create_topic("T_theirs", queues=3)
    command = [sys.executable, "-m", "sparrowmq", "topicRoute", "-t", "T_theirs"]

    result = subprocess.run(
        [*command, "-n", shared_cluster.name_server],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert "T_theirs" in result.stdout
    assert "topicRoute is: sparrowmq topic show T_theirs" in result.stderr
