"""Make the generated files: `make generate`; `--check` only compares.

- The synchronous face is the asyncio face without `async` and `await` and in other words. The
  differences of the two stand in `client/faces/task_host.py` and `thread_host.py`, under the same
  names.
- The reference page of commands is made of the command line itself, the page of metrics of the
  tables of series.
- The tables of the pages on speed are the last results of the benchmarks beside Apache and Kafka.
- The catalogues of translations are made of the texts in the code (`tools/texts.py`).
- The page of the doctor's scenarios is made of the groups in `tests/support/sick_groups.py`.
- The types of settings (for editors and type checkers) and the reference page of settings are made
  of the rows in `client/config.py` and `config.py`.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import fields
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer.main
from typer.core import TyperGroup

from sparrowmq.cli import connecting
from sparrowmq.cli.main import build_app
from sparrowmq.client.config import (
    KINDS,
    SIMPLE,
    AdminConfig,
    ClientConfig,
    ClientTimes,
    ConsumerConfig,
    IdentityConfig,
    ProducerConfig,
    SightConfig,
)
from sparrowmq.client.sight.series import CLIENT_SERIES, MetricSeries
from sparrowmq.config import Setting, rows_of
from sparrowmq.exporter.cluster_series import CLUSTER_SERIES
from sparrowmq.hosting.settings import NAME_SERVER, SETTINGS
from sparrowmq.spark.lag import SPARK_SERIES
from texts import make_catalogs

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ROOT = Path(__file__).parent.parent
CLIENT = ROOT / "src/sparrowmq/client"
PAGE = ROOT / "docs/reference/settings.md"
METRICS_PAGE = ROOT / "docs/reference/metrics.md"
SCENARIOS_PAGE = ROOT / "docs/reference/doctor-scenarios.md"
COMMANDS_PAGE = ROOT / "docs/reference/command-line.md"
RESULT_PAGES = [
    ROOT / f"docs/{name}{language}.md"
    for name in (
        *("explanation/reliability", "explanation/speed", "explanation/spark-speed"),
        "reference/planted-mistakes",
    )
    for language in ("", ".zh")
]
RUFF = Path(sys.executable).with_name("ruff")

FACES = {
    "aio.py": "blocking.py",
    "aio_admin.py": "blocking_admin.py",
    "aio_poll.py": "blocking_poll.py",
    "aio_simple.py": "blocking_simple.py",
    "aio_member.py": "blocking_member.py",
    "aio_batches.py": "blocking_batches.py",
    "aio_transaction.py": "blocking_transaction.py",
}
# Applied in this order; each pattern must occur in some face.
WORDS = (
    (
        r"Sends that are awaited at the same time overlap on one connection\. A listener is a "
        r"coroutine\nfunction, which runs on the loop, or a plain function, which runs in a "
        r"thread\.\n",
        "`Producer` and `Admin` have no thread of their own: the calling thread does the I/O, and "
        "threads\nthat share one overlap on the same connections. A `PushConsumer` has one thread "
        "for its I/O, and\nits listener runs in a bounded pool.\n",
    ),
    (r"\n\nThe synchronous face, `\w+\.py`, is generated from this file by `make generate`\.", ""),
    (
        r"calls at once\. A coroutine function runs on the loop, a plain\n"
        r"\s+function in a thread\.",
        "threads at once.",
    ),
    (r" A\s+coroutine\s+function\s+runs\s+on\s+the\s+loop, a plain function in a thread\.", ""),
    ("The asyncio face", "The synchronous face"),
    ("each method awaits one operation on an asyncio driver", "each method runs one operation"),
    ("each method awaits one operation", "each method runs one operation"),
    ("Tasks may share", "Threads may share"),
    ("One task polls", "One thread polls"),
    ("another task polls", "another thread polls"),
    ("in a separate task", "in a separate thread"),
    (r"async_driver\b", "blocking_driver"),
    (r"\bAsyncDriver\b", "BlockingDriver"),
    (r"\btask_host\b", "thread_host"),
    (r"\bTaskHost\b", "ThreadHost"),
    (r"\bTaskFutures\b", "ThreadFutures"),
    (r"\baio(_\w+)? import", r"blocking\1 import"),
    (r"\baclose\b", "close"),
    (r"\b__a(enter|exit|iter)__\b", r"__\1__"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bAbstractAsyncContextManager\b", "AbstractContextManager"),
    (r"\basync (?=def |for |with )", ""),
    (r"\bawait ", ""),
)
# Words of the asyncio face that must not be left.
LEFT = re.compile(r"\basync(?:io)?\b|\bawait|\bAsync|[Cc]oroutine|\b[Tt]asks?\b|event loop")


def make_faces() -> Iterator[tuple[Path, str]]:
    """Make the synchronous face."""
    unused = {pattern for pattern, _ in WORDS}
    for source, target in FACES.items():
        text = (CLIENT / "faces" / source).read_text()
        for pattern, word in WORDS:
            text, count = re.subn(pattern, word, text)
            if count:
                unused.discard(pattern)
        wrong = LEFT.search(text)
        if wrong is not None:
            line = text.count("\n", 0, wrong.start()) + 1
            raise SystemExit(f"{target}:{line}: {wrong[0]!r} is left of {source}; see WORDS")
        path = CLIENT / "faces" / target
        yield path, tidy(f"# Made of {source} by `make generate`; change that file.\n{text}", path)
    if unused:
        raise SystemExit(f"found in no face: {sorted(unused)}; see WORDS")


def make_types() -> tuple[Path, str]:
    """Make the types of the clients' settings."""
    text = '''# Made of config.py by `make generate`; change that file.
"""The settings of each client, as editors and type checkers see them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from sparrowmq.membership.client_id import ClientIdRule
from sparrowmq.model import CompressionType, MessageModel, UnreadablePolicy
from sparrowmq.model.consuming import Balance, Start
from sparrowmq.strategies.registry import StrategyChoice

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry
'''
    users: dict[type[DataclassInstance], list[str]] = {}
    for kind in KINDS.values():
        for table in kind.tables:
            users.setdefault(table, []).append(kind.name)
    shared = [table for table, kinds in users.items() if len(kinds) > 1]
    for table in shared:
        text += f"\n\nclass _{table.__name__}(TypedDict, total=False):\n"
        text += f'    """Settings of {", ".join(users[table])}."""\n'
        text += members(table, of="")
    for kind in KINDS.values():
        bases = [f"_{table.__name__}" for table in kind.tables if table in shared]
        text += f"\n\nclass {kind.name}Settings({', '.join(bases)}, total=False):\n"
        text += (
            f'    """Settings of `{kind.name}` and `Async{kind.name}`; each may be left out."""\n'
        )
        for table in kind.tables:
            text += members(table, of=kind.name if table in shared else "")
    path = CLIENT / "setting_types.py"
    return path, tidy(text, path)


def members(table: type[DataclassInstance], *, of: str) -> str:
    """Return a table's settings as members of a class.

    Args:
        of: the kind of client that alone has them; "" for those of every user of the table.
    """
    types = {each.name: each.type for each in fields(table)}
    return "".join(
        f"\n    {name}: {types[name]}\n{docstring(row)}"
        for name, row in rows_of(table).items()
        if row.only == ((of,) if of else ())
    )


def docstring(row: Setting) -> str:
    """Return a setting's docstring, which editors show."""
    parts = [f"{row.help[0].upper()}{row.help[1:]}."]
    if row.low is not None:
        parts.append(f"From {bounds(row).replace('–', 'to')}.")
    if row.default is not None:
        parts.append(f"Default: {shown(row.default)}.")
    lines = textwrap.wrap(" ".join(parts), 90, break_on_hyphens=False)
    last = '"""' if len(lines) == 1 else '\n"""'
    return textwrap.indent('"""' + "\n".join(lines) + last, "    ") + "\n"


def bounds(row: Setting) -> str:
    """Return the range of a setting with its unit."""
    if row.choices:
        return ", ".join(row.choices)
    if row.low is None or row.high is None:
        return row.unit
    return f"{row.low:,} – {row.high:,} {row.unit}".strip()


def shown(value: object) -> str:
    """Return a value as users write it."""
    if isinstance(value, StrEnum | Path):
        return f"`{str(value)!r}`"
    if isinstance(value, Enum):
        return f"`{type(value).__name__}.{value.name}`"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"`{value!r}`"


def make_page() -> tuple[Path, str]:
    """Make the reference page of settings."""
    every = [kind.name for kind in KINDS.values()]
    with_id = [name for name in every if name not in ("Admin", SIMPLE)]
    consumers = [name for name in with_id if name.endswith("Consumer")]
    tables = (
        ("Of every client", ClientConfig, every),
        ("Of producers and consumers: who they are", IdentityConfig, with_id),
        ("Of producers and consumers: how often they look", ClientTimes, with_id),
        ("Of producers and consumers: who sees what they do", SightConfig, with_id),
        ("Of producers", ProducerConfig, ["Producer"]),
        ("Of consumers", ConsumerConfig, consumers),
        ("Of administrators and of consumers of single messages", AdminConfig, ["Admin", SIMPLE]),
    )
    text = """# Settings

<!-- Made of the tables of settings by `make generate`; change those. -->

Clients take settings by name: `Producer("GID_p", name_server=..., retry_times=5)`. Each may be left
out. A name that no setting has, and a value out of range, is a `ConfigError` that says what is
allowed. `AsyncProducer` and the other clients of the asyncio face have the settings of their
namesakes. Spark's options stand on pages of their own: [the source](spark-source.md),
[the sink](spark-sink.md).
"""
    for title, table, owners in tables:
        names = ", ".join(f"`{name}`" for name in owners)
        text += f"\n## {title}\n\nFor {names}.\n\n{markdown(rows_of(table).values())}"
    text += f"""
## Of every server

Options of `sparrowmq up`, `sparrowmq broker`, `sparrowmq nameserver` and `python -m
sparrowmq.hosting`, which has those of `up`. The commands take them from variables
(`--retention-hours` is `SPARROWMQ_RETENTION_HOURS`) and [from a
file](../howto/operate-servers.md#settings-options-variables-a-file) as well; `python -m
sparrowmq.hosting`, which tests and benchmarks start, takes options alone, so that no variable of
the machine changes what they do.

{markdown(options(row for row in SETTINGS.values() if NAME_SERVER in row.only or not row.only))}
## Of brokers

Options of `sparrowmq up` and `sparrowmq broker`.

{markdown(options(row for row in SETTINGS.values() if row.only and NAME_SERVER not in row.only))}"""
    return PAGE, text


def options(rows: Iterable[Setting]) -> Iterator[Setting]:
    """Return servers' rows under the names of their options."""
    for row in rows:
        only = tuple(f"sparrowmq {each}" for each in row.only) if len(row.only) == 1 else ()
        yield row._replace(name=f"--{row.option}", only=only)


def markdown(rows: Iterable[Setting]) -> str:
    """Return rows as a table."""
    lines = ["| Setting | Default | Range | RocketMQ's | Meaning |", "|---|---|---|---|---|"]
    for row in rows:
        help = row.help.replace("|", r"\|")
        if row.only:
            help += f". Only `{row.only[0]}` has it"
        source = f"`{row.source}`" if row.source else ""
        lines.append(f"| `{row.name}` | {shown(row.default)} | {bounds(row)} | {source} | {help} |")
    return "\n".join(lines) + "\n"


def make_metrics_page() -> tuple[Path, str]:
    """Return the reference page of series."""
    return (
        METRICS_PAGE,
        f"""# Metrics

<!-- Made of the tables of series by `make generate`; change those. -->

Series for Prometheus (extra `prometheus`).
[How to set it up](../howto/monitor.md#graphs-and-alerts-by-prometheus).
Clients' log lines have [a page of their own](logs.md).

## Of a cluster

From `sparrowmq metrics` and `sparrowmq up --metrics-port`, of our brokers and Apache's. Counters
begin with the exporter. Of more than 100 groups, those that need attention first have series
beside their lag.

{series_table(CLUSTER_SERIES)}
## Of clients

From producers and consumers with `metrics_registry=`.

{series_table(CLIENT_SERIES)}
## Of Spark's queries

From `LagListener(registry=...)` of `sparrowmq.spark.lag_listener`.

{series_table(SPARK_SERIES)}""",
    )


def series_table(every: Iterable[MetricSeries]) -> str:
    """Return series as a table."""
    lines = ["| Series | Kind | Labels | Meaning |", "|---|---|---|---|"]
    for each in every:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{each.sample_name}` | {each.kind} | {labels} | {each.help} |")
    return "\n".join(lines) + "\n"


def make_commands_page() -> tuple[Path, str]:
    """Return the reference page of commands."""
    parts = [
        """# Commands

<!-- Made of the command line by `make generate`; change that. -->

`sparrowmq`, short `smq`, also `python -m sparrowmq`.
[How to use them](../howto/command-line.md) has the conventions: which cluster a command talks to,
what it prints, its exit codes. Options are given after the command's name. Most
commands have these:
"""
    ]
    app = typer.main.get_command(build_app())
    assert isinstance(app, TyperGroup)
    shared = {*connecting.ConnectionOptions._fields, "as_json"}
    ls = app.commands["ls"]
    parts.append(options_table([each for each in ls.params if each.name in shared]))
    for name in app.commands:
        parts.append(describe_command(f"sparrowmq {name}", app.commands[name], shared))
    return COMMANDS_PAGE, "\n".join(parts)


def describe_command(path: str, command: Any, shared: set[str], level: int = 2) -> str:
    """Return a command's section, with those of its subcommands."""
    shown = [p for p in command.params if p.name != "help" and not p.hidden]
    takes_shared = shared <= {p.name for p in shown}
    own = [p for p in shown if not (takes_shared and p.name in shared)]
    arguments = [p for p in own if p.param_type_name == "argument"]
    options = [p for p in own if p.param_type_name == "option"]
    usage = " ".join([path, *(argument_name(p) for p in arguments)])
    text, _, examples = inspect.cleandoc(command.help or "").partition("\b\nExamples:\n")
    text, _, keys = text.partition("\b\nKeys:\n")
    parts = [f"{'#' * level} `{path}`\n", text.strip() + "\n"]
    commands = getattr(command, "commands", {})
    if not commands or options:
        parts.append(f"```text\n{usage}{' [OPTIONS]' if options else ''}\n```\n")
    if arguments or options:
        parts.append(options_table([*arguments, *options]))
    if takes_shared:
        parts.append("Takes the options of most commands, too.\n")
    if keys:
        parts.append(f"```text\n{textwrap.dedent(keys).strip()}\n```\n")
    if examples:
        parts.append(f"```sh\n{textwrap.dedent(examples).strip()}\n```\n")
    for name in commands:
        parts.append(describe_command(f"{path} {name}", commands[name], shared, level + 1))
    return "\n".join(parts)


def argument_name(argument: Any) -> str:
    """Return an argument's name in its command's usage."""
    return str(argument.metavar or argument.name.upper())


def options_table(parameters: Iterable[Any]) -> str:
    """Return the table of arguments and options."""
    lines = ["| | Default | Meaning |", "|---|---|---|"]
    for each in parameters:
        is_argument = each.param_type_name == "argument"
        names = [*each.opts, *each.secondary_opts]
        name = argument_name(each) if is_argument else ", ".join(names)
        default = "" if each.default in (None, False, "", ()) else str(each.default)
        text = (each.help or "").replace("|", "\\|")
        lines.append(f"| `{name}` | {f'`{default}`' if default else ''} | {text} |")
    return "\n".join(lines) + "\n"


def tidy(text: str, path: Path) -> str:
    """Sort a module's imports, drop unused imports, and format the module."""
    for command in (["check", "--quiet", "--fix", "--select", "I,F401"], ["format", "--quiet"]):
        text = subprocess.run(
            [RUFF, *command, "--stdin-filename", path, "-"],
            input=text,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=True,
        ).stdout
    return text


_SCENARIOS = """# The doctor's scenarios

The doctor looks at {sick_count} groups with something to find and {healthy_count} healthy ones,
which all run at the same time with real members: `tests/doctor/test_live_groups.py` on
SparrowMQ's broker, `tests/interop/test_live_groups.py` on Apache's. `make generate` makes this page
of the groups that both tests examine (`tests/support/sick_groups.py`).

## Findings

The finding comes first, its remedy has these words, and nothing else that the doctor says of the
group is more than information. What another rule finds because of the fault is folded under it.

| fault | rule | severity | words of the remedy | folded | brokers |
|---|---|---|---|---|---|
{faults}

## Healthy groups

What the doctor says of these groups is information at most: no false alarm, on both brokers.

| group | what might raise an alarm |
|---|---|
{healthy}

## Several brokers or clusters

These groups have two brokers each, and all is as above (`tests/support/sick_brokers.py`, examined
by `tests/doctor/test_live_brokers.py` and `tests/interop/test_live_brokers.py`).

| fault | rule | severity | words of the remedy | folded | brokers |
|---|---|---|---|---|---|
{apart}
"""


def make_scenarios_page() -> tuple[Path, str]:
    """Return the page of the groups that the doctor's live tests examine."""
    sys.path.append(str(ROOT / "tests/support"))
    from sick_brokers import SICK_BROKERS
    from sick_groups import HEALTHY, SICK

    apart = [_row(each.wanted, each.brokers) for each in SICK_BROKERS.values()]
    faults = [_row(each, "SparrowMQ's" if each.is_ours else "both") for each in SICK.values()]
    healthy = [f"| `{group}` | {what} |" for group, what in HEALTHY.items()]
    return SCENARIOS_PAGE, _SCENARIOS.format(
        sick_count=len(SICK),
        healthy_count=len(HEALTHY),
        faults="\n".join(faults),
        healthy="\n".join(healthy),
        apart="\n".join(apart),
    )


def _row(wanted: Any, brokers: str) -> str:
    what = (wanted.fault, wanted.rule, wanted.severity.name.lower(), wanted.remedy, wanted.effect)
    return f"| {' | '.join([*what, brokers])} |"


def make_result_pages() -> Iterator[tuple[Path, str]]:
    """Put the results of benchmarks and of the gate into the pages that explain them."""

    def put(found: re.Match[str]) -> str:
        results = ROOT / found[2]
        return f"{found[1]}\n{results.read_text()}{found[3]}" if results.exists() else found[0]

    block = r"(<!-- Made of (\S+) by `make generate`\. -->)\n.*?(<!-- End\. -->)"
    for page in RESULT_PAGES:
        yield page, re.sub(block, put, page.read_text(), flags=re.DOTALL)


def main(arguments: list[str]) -> int:
    """Write the files, or compare them, in English on every machine."""
    os.environ["LANGUAGE"] = "en"
    made = dict(
        [
            *make_faces(),
            make_types(),
            make_page(),
            make_metrics_page(),
            make_commands_page(),
            make_scenarios_page(),
            *make_result_pages(),
        ]
    )
    files = {path: text.encode() for path, text in made.items()} | dict(make_catalogs())
    changed = [path for path, data in files.items() if not same(path, data)]
    for path in changed:
        print(path.relative_to(ROOT))
        if "--check" not in arguments:
            path.write_bytes(files[path])
    return 1 if changed and "--check" in arguments else 0


def same(path: Path, data: bytes) -> bool:
    """Return whether a file has these bytes."""
    return path.exists() and path.read_bytes() == data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
