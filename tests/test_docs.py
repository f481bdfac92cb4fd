"""Every Python block of the README and the documentation runs, in order, file by file.

Chinese pages have the blocks of their English twins, and name the same things.
Where a block of text follows a Python block, each of its lines but "..." was printed. A block that
says "# until Ctrl-C" gets its Ctrl-C once all of them but the last are.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from types import CodeType

import pytest
import typer.main
from _pytest.mark import ParameterSet
from typer.core import TyperGroup

import sparrowmq
from sparrowmq.cli.main import build_app
from sparrowmq.hosting.settings import UP, settings_of
from sparrowmq.serving import http_pages
from sparrowmq.serving.open_connections import REQUEST_TIMEOUT_S
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [*sorted(ROOT.glob("README*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.S)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^ *```.*?^ *```$", re.S | re.M)
COMMENT = re.compile(r"<!--.*?-->", re.S)
NAMED = re.compile(r"`([^`]+)`")
SPARK_RESULTS = ("spark.md", "spark-speedups.md")
# Their jobs and streams compute longest.
LONG = ("spark-jobs.md", "spark-sink.md", "pipeline-of-your-own.md", "from-kafka-source.md")
CHINESE = [path for path in DOCUMENTS if path.name.endswith(".zh.md")]
WITH_BLOCKS = [path for path in DOCUMENTS if path not in CHINESE and BLOCK.search(path.read_text())]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def page(path: Path) -> ParameterSet:
    """A page's test, which is Spark's if one of its blocks is."""
    marks = [pytest.mark.long] if path.name in LONG else []
    if any("spark" in block.lower() for block, _ in BLOCK.findall(path.read_text())):
        marks.append(pytest.mark.spark)
    return pytest.param(path, id=name_of(path), marks=marks)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", [page(path) for path in WITH_BLOCKS])
def test_code_blocks_run_as_printed(path: Path, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("spark") is not None:
        # What the page calls its session is the run's.
        request.getfixturevalue("spark")
    names: dict[str, object] = {}
    with EmbeddedCluster() as cluster:
        for match in BLOCK.finditer(path.read_text()):
            line = path.read_text()[: match.start()].count("\n") + 1
            code = "\n" * line + match.group(1).replace("127.0.0.1:9876", cluster.name_server)
            printed = StringIO()
            lines = [each for each in (match.group(2) or "").splitlines() if each != "..."]
            program = compile(code, str(path), "exec")
            with redirect_stdout(printed), interrupting(program, code, printed, lines[:-1]):
                exec(program, names)
            assert set() == set(lines) - set(printed.getvalue().splitlines())
    drop_views()


def drop_views() -> None:
    """Drop the views that a page has made in the session that all pages share."""
    if "pyspark.sql" not in sys.modules:
        return
    from pyspark.sql import SparkSession

    if (session := SparkSession.getActiveSession()) is not None:
        for table in session.catalog.listTables():
            if table.isTemporary:
                session.catalog.dropTempView(table.name)


@contextmanager
def interrupting(
    program: CodeType, code: str, printed: StringIO, lines: list[str]
) -> Generator[None]:
    """Send the process a Ctrl-C once these lines are printed and the program waits for it."""
    if "# until Ctrl-C" not in code:
        yield
        return
    line = code[: code.index("# until Ctrl-C")].count("\n") + 1
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def waits() -> bool:
        # Listeners may print all of it while the consumer still starts.
        own_handler = signal.getsignal(signal.SIGINT) is not handlers[signal.SIGINT]
        return own_handler or line_of(program) == line

    def interrupt() -> None:
        wait_until(
            "printed, and waits for Ctrl-C",
            lambda: set(lines) <= set(printed.getvalue().splitlines()) and waits(),
        )
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        for each, handler in handlers.items():
            signal.signal(each, handler)


def line_of(program: CodeType) -> int | None:
    """Return the line of the program at which the main thread stands."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not program:
        frame = frame.f_back
    return None if frame is None else frame.f_lineno


@pytest.mark.parametrize("path", CHINESE, ids=name_of)
def test_a_chinese_page_has_the_blocks_of_its_english_twin(path: Path) -> None:
    english = FENCE.findall(path.with_name(path.name.replace(".zh.md", ".md")).read_text())
    chinese = [
        block.replace('title="终端 ', 'title="terminal ')
        for block in FENCE.findall(path.read_text())
    ]

    assert english == chinese


@pytest.mark.parametrize("path", CHINESE, ids=name_of)
def test_a_chinese_page_calls_only_pages_english_that_are(path: Path) -> None:
    called = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)（英文）", path.read_text())

    twins = [(path.parent / each).with_suffix(".zh.md") for each in called]
    assert [name_of(twin.resolve()) for twin in twins if twin.exists()] == []


@pytest.mark.parametrize("path", CHINESE, ids=name_of)
def test_a_chinese_page_names_what_its_english_twin_names(path: Path) -> None:
    english = path.with_name(path.name.replace(".zh.md", ".md"))

    assert names_of(english) == names_of(path)


def names_of(page: Path) -> set[str]:
    """Return what stands in backquotes, outside blocks and comments."""
    text = COMMENT.sub("", FENCE.sub("", page.read_text()))
    return {" ".join(name.split()) for name in NAMED.findall(text)}


@pytest.mark.parametrize("name", ["handover.md", "handover.zh.md"])
def test_the_page_on_handovers_has_the_figures_of_its_result(name: str) -> None:
    result = (ROOT / "benchmarks/results/convergence.md").read_text().replace("(0.0)", "(0)")
    page = (ROOT / "docs/explanation" / name).read_text()

    # The page leaves out how often each change was made, and the aim.
    rows = [
        row.split(" | ") for row in result.splitlines() if re.match(r"\| \w*(join|leave|kill)", row)
    ]
    assert [row[0] for row in rows] == ["| join", "| leave", "| kill", "| rejoin"]
    assert [each for row in rows if (each := " | ".join([row[0], *row[3:]])) not in page] == []

    large = (ROOT / "benchmarks/results/convergence-500.md").read_text()
    medians = [f"{int(median):,}" for median in re.findall(r" (\d+), \d+ \|", large)]
    (load,) = re.findall(r"load (\d+) on 2 cores", large)
    assert len(medians) == 12
    (named,) = re.findall(r"`--members 500`.*?`benchmarks/results/convergence-500.md`", page, re.S)
    # A member in Java that joins is the one figure of the last column that the page has.
    assert [each for row in range(4) for each in medians[3 * row :][:2] if each not in named] == []
    assert medians[2] in named
    assert re.search(rf"load of {load} |负载 {load}：", named)


@pytest.mark.parametrize("name", ["spark-sink.md", "spark-sink.zh.md"])
def test_the_page_on_the_sink_has_what_a_row_costs_the_broker(name: str) -> None:
    page = (ROOT / "docs/reference" / name).read_text()
    costs = [
        re.findall(r"^\| write \|.* ([\d.]+) / [\d.]+ \|$", table.read_text(), re.M)[0]
        for table in (ROOT / "benchmarks/results" / each for each in SPARK_RESULTS)
    ]

    found = re.findall(r"(?:broker takes|Broker 耗费) ([\d.]+)\D+?([\d.]+)", page)
    assert found == [tuple(costs)]


def test_the_page_on_servers_has_the_bounds_of_their_http_pages() -> None:
    page = (ROOT / "docs/howto/operate-servers.md").read_text()

    kib = http_pages.HEAD_BYTES_MAX // 1024
    bounds = f"{kib} KiB, {REQUEST_TIMEOUT_S:.0f} s, {http_pages.CONNECTIONS_MAX} at once"
    assert f"({bounds})" in page


def test_the_page_on_servers_names_the_options_that_are_no_settings() -> None:
    app = typer.main.get_command(build_app())
    assert isinstance(app, TyperGroup)
    shown = [each for each in app.commands["up"].params if not getattr(each, "hidden", False)]
    options = {option for each in shown for option in each.opts} - {"--config"}
    options -= {f"--{row.option}" for row in settings_of(UP).values()}
    page = " ".join((ROOT / "docs/howto/operate-servers.md").read_text().split())

    (named,) = re.findall(r"programs beside the servers \(([^)]*)\) exist only as options", page)
    assert set(NAMED.findall(named)) == options


def test_pages_install_nothing_that_no_package_index_has() -> None:
    # Errors, which stand in parentheses, name extras of what is installed.
    command = re.compile(r"(?<!\()pip (?:install|download) [^`\n#]*\bsparrowmq\b")
    pages = [*DOCUMENTS, ROOT / "packaging/README.md", ROOT / "speedups/README.md"]

    assert [found for page in pages for found in command.findall(page.read_text())] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    wrong = [
        target
        for target in LINK.findall(path.read_text())
        if not (path.parent / target).resolve().exists()
    ]

    assert wrong == []


def test_the_page_of_the_api_has_every_public_name_but_those_made_of_others() -> None:
    page = (ROOT / "docs/reference/api.md").read_text()
    listed = re.findall(r"^::: sparrowmq\.(\w+)$", page, re.M)

    made = {name for name in sparrowmq.__all__ if name.startswith("Async") or "Settings" in name}
    assert sorted(set(sparrowmq.__all__) - made) == sorted(listed)
    assert {name for name in made if name.startswith("Async")} == set(re.findall(r"Async\w+", page))


def test_docstrings_begin_a_line_with_each_argument() -> None:
    # Otherwise the page of the API and editors take the argument for a part of the one before.
    members = [
        (f"{name}.{member}", function)
        for name in sparrowmq.__all__
        for member, function in vars(getattr(sparrowmq, name)).items()
        if inspect.isfunction(function) and not member.startswith("_")
    ]
    hidden = [
        (where, names)
        for where, function in members
        for names in re.findall(r"\S\s+([a-z_]+(?:, [a-z_]+)*):\s", args_of(function))
        if set(names.split(", ")) <= inspect.signature(function).parameters.keys()
    ]

    assert len(members) > 100
    assert hidden == []


def args_of(function: Callable[..., object]) -> str:
    """Return the section Args of a docstring, without what begins a line there."""
    _, _, section = (inspect.getdoc(function) or "").partition("Args:\n")
    lines = section.partition("\n\n")[0].splitlines()
    indented = [re.sub(r"^    [a-z_]+(, [a-z_]+)*:", "", line) for line in lines]
    return " ".join(["", *indented, ""])


def test_every_page_but_single_decisions_stands_in_the_navigation() -> None:
    listed = set(re.findall(r"- (\w+/[\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    pages = {
        path.relative_to(ROOT / "docs").as_posix()
        for folder in ("howto", "explanation", "reference")
        for path in ROOT.glob(f"docs/{folder}/*.md")
        if path not in CHINESE
    }

    assert set() == pages - listed
