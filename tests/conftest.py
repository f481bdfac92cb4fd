"""What all tests share: golden vectors, the extension in C, a Spark session, Hypothesis' settings.

`tests/support/golden.py` says how a test gets golden vectors. `pytest --golden DIR` runs the tests
that do alone, on the files of another directory; one whose file or cases are not there is skipped.
(Without the plug-in of `tests/golden_option`, which `make setup` installs: `pytest --golden=DIR`.)
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet
    from pyspark.sql import SparkSession

    from certificates import Certificates
    from golden import GoldenDirectory
    from sparrowmq.protocol.speedups import Speedups

# Hypothesis fails an example that takes over 0.2 s: on a busy machine that says nothing.
settings.register_profile("sparrowmq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sparrowmq")

# The default port of the gRPC service is one for the machine: tests that need one take a free port.
os.environ.setdefault("SPARROWMQ_GRPC_PORT", "-1")

# To compile a query, and to plan it anew while it runs, takes longer than the few rows of a test.
_SPARK_CONF = {
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}

_HOME = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    # `tests/golden_option`, where it is installed, has added the option before.
    if pluginmanager.hasplugin("sparrowmq-golden"):
        return
    parser.addoption(
        "--golden",
        metavar="DIR",
        default=None,
        help="take the golden vectors from DIR, which holds files as tests/golden does",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A script's background process ignores Ctrl-C, as would every process that a test starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Not at the top: `pytest --golden DIR` reads this file before it reads where modules are.
    from class_archive import use_class_archive

    use_class_archive()
    config.addinivalue_line(
        "markers", "golden_files(pattern): run once per golden file (`golden_file`)"
    )
    directory = _directory(config)
    if not directory.is_dir():
        raise pytest.UsageError(f"--golden: {directory} is not a directory")
    names = sorted({path.name.removesuffix(".gz") for path in _HOME.glob("*.json*")})
    if not any((directory / f"{name}{end}").is_file() for name in names for end in ("", ".gz")):
        raise pytest.UsageError(
            f"--golden: {directory} holds no golden file; it should hold some of {', '.join(names)}"
        )


def pytest_collection() -> None:
    # Nearly nothing that pytest builds of thousands of tests is garbage: the search for it takes a
    # third of the collection, and would take longer in each test that has one.
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    # A process has one SparkContext, and many JVMs starve each other: one worker has the session,
    # two others run what starts JVMs of its own. pytest-xdist reads the mark before this file's
    # `pytest_collection_modifyitems`.
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.xdist_group("spark session"))
    elif item.get_closest_marker("spark"):
        by_code = item.path.parent.name in ("pipeline", "spark")
        group = "spark processes" if by_code else "spark as documented"
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # What one worker runs as a whole takes longest, so it begins first, and then what is slow: no
    # worker then waits at the end for another's slow tests. Otherwise the order is
    # pytest-randomly's.
    items.sort(
        key=lambda item: [item.get_closest_marker(m) is None for m in ("xdist_group", "slow")]
    )
    if config.getoption("--golden") is None:
        return
    others = [item for item in items if not _is_golden(item)]
    items[:] = [item for item in items if _is_golden(item)]
    config.hook.pytest_deselected(items=others)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    # `-q` hides the line in which pytest-randomly prints it.
    if (seed := config.getoption("randomly_seed", None)) is not None:
        terminalreporter.write_line(f"the same order again: pytest --randomly-seed={seed}")


def _is_golden(item: pytest.Item) -> bool:
    return not {"golden", "golden_file"}.isdisjoint(getattr(item, "fixturenames", ()))


def _directory(config: pytest.Config) -> Path:
    chosen = config.getoption("--golden")
    if chosen is None:
        return _HOME
    return (config.invocation_params.dir / str(chosen)).resolve()


@pytest.fixture(scope="session")
def golden(pytestconfig: pytest.Config) -> GoldenDirectory:
    """The golden vectors of this run."""
    # Not at the top: `pytest --golden DIR` reads this file before it reads where modules are.
    from golden import GoldenDirectory

    return GoldenDirectory(_directory(pytestconfig))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    patterns = [marker.args[0] for marker in metafunc.definition.iter_markers("golden_files")]
    if patterns:
        metafunc.parametrize("golden_file", _file_params(_directory(metafunc.config), patterns))


def _file_params(directory: Path, patterns: list[str]) -> list[ParameterSet]:
    params: list[ParameterSet] = []
    for pattern in patterns:
        paths = sorted(directory.glob(pattern))
        params.extend(pytest.param(path, id=path.name) for path in paths)
        if not paths:
            skip = pytest.mark.skip(reason=f"no {pattern} in {directory}")
            params.append(pytest.param(None, id=pattern, marks=skip))
    return params


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority with certificates of a server at 127.0.0.1 and of a client."""
    # Not at the top, as above.
    from certificates import Certificates

    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def built_speedups(tmp_path_factory: pytest.TempPathFactory) -> Speedups:
    """The extension in C as the tree has it."""
    # Not at the top, as above.
    from extension import build_speedups

    return build_speedups(tmp_path_factory.mktemp("speedups"))


@pytest.fixture(scope="module", params=["plain", "speedups"])
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the tests of a module without the extension in C, and with it."""
    from sparrowmq.protocol import speedups

    before, is_plain = speedups.functions, request.param == "plain"
    speedups.functions = None if is_plain else request.getfixturevalue("built_speedups")
    yield
    speedups.functions = before


@pytest.fixture
def spark() -> SparkSession:
    """The run's one session, or its successor where a page of the documentation has stopped it.

    A start of the JVM takes about ten seconds; it ends with the run. A page may also have changed
    the session's settings, which are put right.
    """
    pytest.importorskip("pyspark")
    from sparrowmq.spark import spark_session

    session = spark_session(
        "sparrowmq tests", master="local[2]", short_lived=True, conf=_SPARK_CONF
    )
    session.sparkContext.setLogLevel("OFF")
    return session


@pytest.fixture
def without_zones(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with timestamps that have no zone where SQL names none."""
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    yield spark
    spark.conf.unset("spark.sql.timestampType")
