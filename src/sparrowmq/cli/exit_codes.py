"""The end of subcommands that look at a cluster or run a job: a line on stderr, an exit code.

Tests: test_output.py, test_rebalance.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import typer

from sparrowmq.cli.language import words
from sparrowmq.errors import ConfigError, LocalProtocolError, SparrowError, UsageError
from sparrowmq.model.plain_text import escape

T = TypeVar("T")

EXIT_FOUND, EXIT_USAGE, EXIT_FAILED, EXIT_INTERRUPTED = 1, 2, 3, 130


def say(text: str) -> None:
    """Print one line of prose on stderr; stdout is for data."""
    # Brokers and the clients of others choose parts of it.
    typer.echo(f"sparrowmq: {escape(' '.join(words().phrase(text).split()))}", err=True)


def say_missing(failures: Mapping[str, object]) -> None:
    """Say why the queues of some brokers are missing from what is shown, by the brokers' names."""
    for line in describe_missing(failures):
        say(line)


def describe_missing(failures: Mapping[str, object]) -> list[str]:
    """Write a line for each broker whose queues are missing."""
    return [f"{name}: {failure}; its queues are missing" for name, failure in failures.items()]


@contextmanager
def reporting_errors() -> Generator[None]:
    """Turn errors into one line on stderr and an exit code: 2 wrong input, 3 failed, 130 Ctrl-C."""
    try:
        yield
    except (ConfigError, UsageError, LocalProtocolError) as error:
        # Of the last, an argument was not UTF-8, or too long for a request.
        say(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    except SparrowError as error:
        say(str(error))
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def keep_looking(look: Callable[[], T], pause: Callable[[], None]) -> Iterator[T]:
    """Look again and again; once a look succeeded, a failed one is said, and does not end the loop.

    Args:
        pause: waits after a failed look.

    Raises: the SparrowError of the first look.
    """
    has_seen = False
    while True:
        try:
            seen = look()
        except SparrowError as error:
            if not has_seen:
                raise
            say(str(error))
            pause()
        else:
            has_seen = True
            yield seen
