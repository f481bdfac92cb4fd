"""`sparrowmq send`: one message from an argument or a file, or one for each line.

Tests: test_messages.py.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple, Protocol

import typer
from msgspec.structs import replace

from sparrowmq.cli.connecting import CommandCluster, TopicName, naming_topic, on_cluster
from sparrowmq.cli.exit_codes import say
from sparrowmq.cli.option_sets import parse_pairs
from sparrowmq.cli.output import print_json
from sparrowmq.client.faces.blocking import Producer
from sparrowmq.client.operations.routes import check_queues, get_route
from sparrowmq.errors import SparrowError, UsageError
from sparrowmq.model import Message, MessageQueue, SendResult
from sparrowmq.model.message import BODY_BYTES_MAX
from sparrowmq.model.names import COMMAND_PRODUCER_GROUP
from sparrowmq.model.spelling import parse_queue, spell_queue
from sparrowmq.words import count_of

# Lines sent by one request. RocketMQ limits a batch to 4 MiB and to one queue.
BATCH_COUNT = 256
BATCH_BYTES = 1024 * 1024
# The longest message and the end of its line, which may be two bytes.
_LINE_BYTES_MAX = BODY_BYTES_MAX + 2


@on_cluster
def send(
    cluster: CommandCluster,
    topic: TopicName,
    body: Annotated[
        str | None,
        typer.Argument(metavar="[BODY]", help="the message; by default standard input is read"),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="read this file, one message a line")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="the file, or standard input, is one message")
    ] = False,
    tag: Annotated[str | None, typer.Option("--tag", help="the tag")] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", "-k", help="a key; may be repeated")
    ] = None,
    prop: Annotated[
        list[str] | None, typer.Option("--property", "-p", help="NAME=VALUE; may be repeated")
    ] = None,
    sharding_key: Annotated[
        str | None,
        typer.Option("--sharding-key", help="messages with the same key keep their order"),
    ] = None,
    delay_level: Annotated[
        int, typer.Option("--delay-level", min=0, max=18, help="1 is 1 s, ... 18 is 2 h later")
    ] = 0,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="BROKER:ID, such as broker-a:3")
    ] = None,
) -> None:
    """Send a message, or one for each line of a file or standard input, to a topic that exists.

    \b
    Examples:
      sparrowmq send flights 'JFK-LAX' --tag UA --key UA-1
      sparrowmq send flights --file flights.jsonl
      zcat log.gz | sparrowmq send logs --property host=web-1
      sparrowmq send pictures --file bird.png --whole
    """
    if body is not None and (file is not None or whole):
        raise UsageError("give a body or --file, not both; without either, standard input is read")
    if body is None and file is None and sys.stdin.isatty():
        raise UsageError("there is no message: give a body, --file, or data on standard input")
    message = Message(
        topic,
        b"" if body is None else encode_argument(body),
        tags=tag,
        keys=tuple(key or ()),
        sharding_key=sharding_key,
        delay_level=delay_level,
        properties=parse_pairs("--property", prop),
    )
    place = None if queue is None else MessageQueue(topic, *parse_queue(queue))
    with naming_topic(cluster, topic):
        route = cluster.run(get_route(cluster.directory, topic))
    check_queues(topic, [] if place is None else [place[1:]], route.publish_queues)
    with Producer(COMMAND_PRODUCER_GROUP, **cluster.client_settings) as producer:
        if body is not None:
            _show(cluster, producer.send(message, queue=place))
            return
        with open_input(file) as stream:
            if whole:
                message = replace(message, body=read_whole(stream, file))
                _show(cluster, producer.send(message, queue=place))
                return
            count = _send_lines(producer, _lines(stream, file), message, place)
    if cluster.as_json:
        print_json({"topic": topic, "sent": count})
    say(f"sent {count_of(count, 'message')} to {topic}")


def _send_lines(
    producer: Producer, lines: Iterator[_Line], pattern: Message, queue: MessageQueue | None
) -> int:
    """Send a copy of the pattern for each line that is not empty; return the number sent.

    If sending fails or is interrupted, a line on stderr says where.
    """
    sent, number = 0, 1
    # RocketMQ cannot delay a batch.
    count_max = 1 if pattern.delay_level else BATCH_COUNT
    with _progress() as advance:
        try:
            while batch := _take_batch(lines, count_max):
                number = batch[0].number
                messages = [replace(pattern, body=line.body) for line in batch]
                if len(messages) == 1:
                    producer.send(messages[0], queue=queue)
                else:
                    producer.send_batch(messages, queue=queue)
                sent += len(messages)
                number = batch[-1].number + 1
                advance(len(messages), sum(map(len, [line.body for line in batch])))
        except (SparrowError, KeyboardInterrupt):
            if sent:
                say(f"sent {count_of(sent, 'message')} to {pattern.topic}, up to line {number - 1}")
            raise
    return sent


class _Line(NamedTuple):
    """A line that is not empty; the first has number 1."""

    number: int
    body: bytes


def _lines(stream: BinaryIO, file: Path | None) -> Iterator[_Line]:
    number = 0
    with _reading(file):
        while line := stream.readline(_LINE_BYTES_MAX):
            number += 1
            bare = line.rstrip(b"\r\n")
            is_cut = len(line) == _LINE_BYTES_MAX and not line.endswith(b"\n")
            if is_cut or len(bare) > BODY_BYTES_MAX:
                raise UsageError(f"line {number} is longer than {BODY_BYTES_MAX:,} bytes")
            if bare:
                yield _Line(number, bare)


def _take_batch(lines: Iterator[_Line], count_max: int) -> list[_Line]:
    batch: list[_Line] = []
    size = 0
    for line in islice(lines, count_max):
        batch.append(line)
        size += len(line.body)
        if size >= BATCH_BYTES:
            break
    return batch


def encode_argument(text: str) -> bytes:
    """Return the bytes of an argument, which need not be UTF-8."""
    return text.encode(errors="surrogateescape")


def read_whole(stream: BinaryIO, file: Path | None) -> bytes:
    """Read one message's body. Raises: UsageError if it is beyond brokers' limit."""
    with _reading(file):
        body = stream.read(BODY_BYTES_MAX + 1)
    if len(body) > BODY_BYTES_MAX:
        raise UsageError(
            f"{file or 'standard input'} has more than {BODY_BYTES_MAX:,} bytes, a broker's limit"
        )
    return body


@contextmanager
def _reading(file: Path | None) -> Generator[None]:
    """Name what cannot be read, such as the standard input of `nohup`. Raises: UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot read {file or 'standard input'}: {error.strerror}") from None


@contextmanager
def open_input(file: Path | None) -> Generator[BinaryIO]:
    """Open a file, or standard input for None and "-". Raises: UsageError."""
    if file is None or str(file) == "-":
        yield sys.stdin.buffer
        return
    with _reading(file):
        stream = file.open("rb")
    with stream:
        yield stream


def _show(cluster: CommandCluster, result: SendResult) -> None:
    if cluster.as_json:
        print_json(
            {
                "status": result.status.name,
                "msg_id": result.msg_id,
                "offset_msg_id": result.offset_msg_id,
                "topic": result.queue.topic,
                "broker": result.queue.broker_name,
                "queue": result.queue.queue_id,
                "offset": result.queue_offset,
            }
        )
        return
    print(result.msg_id)
    place = spell_queue(result.queue)
    say(f"{result.status.name}, at offset {result.queue_offset} of {place}")


class _Advance(Protocol):
    def __call__(self, messages: int, size_bytes: int) -> None: ...


def _progress() -> AbstractContextManager[_Advance]:
    """Show on a terminal the number of messages and bytes sent, and the rate."""
    return _bar() if sys.stderr.isatty() else _no_bar()


@contextmanager
def _no_bar() -> Generator[_Advance]:
    yield lambda messages, size_bytes: None


@contextmanager
def _bar() -> Generator[_Advance]:
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.fields[messages]:,} messages"),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("sending", total=None, messages=0)
        total = 0

        def advance(messages: int, size_bytes: int) -> None:
            nonlocal total
            total += messages
            progress.update(task, advance=size_bytes, messages=total)

        yield advance
