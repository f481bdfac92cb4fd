"""What all tests share: golden vectors, a Spark session, Hypothesis' settings.

Golden vectors are answers of Apache RocketMQ's own classes (`tests/golden/README.md`). A test gets
them in one of three ways:

- one test per case: `@pytest.mark.golden("remoting.jsonl", prefix="frame-")` on a test that takes
  `case`, a dict; `prefix` chooses cases by the beginning of their `id`, and further markers on the
  same test add cases;
- one test per file: `@pytest.mark.golden_files("store-*.tar.gz")` on a test that takes
  `golden_file`, a `Path`;
- in a loop: the fixture `golden` with `cases(name, prefix=...)`, `json(name)` and `path(name)`.

`x.jsonl` and `x.json` are found as `x.jsonl.gz` and `x.json.gz` too. `pytest --golden DIR` runs
these tests alone, on the files of another directory; one whose file or cases are not there is
skipped. (Without the plug-in of `tests/golden_option`, which `make setup` installs, write
`pytest --golden=DIR`.)
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from certificates import Certificates

# Hypothesis fails an example that takes over 0.2 s: on a busy machine that says nothing.
settings.register_profile("sparrowmq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sparrowmq")

_HOME = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class GoldenDirectory:
    """A directory of golden vectors. Every method skips the test if the file is not there."""

    directory: Path

    def cases(self, name: str, *, prefix: str = "") -> list[dict[str, Any]]:
        """Return the cases of a .jsonl file whose id begins with `prefix`, in the file's order."""
        cases = [
            case
            for case in _parse_lines(self.path(name))
            if str(case.get("id", "")).startswith(prefix)
        ]
        if not cases:
            pytest.skip(f"{name} in {self.directory} has no case {prefix}*")
        return cases

    def json(self, name: str) -> Any:
        """Return the content of a .json file."""
        return json.loads(_read(self.path(name)))

    def path(self, name: str) -> Path:
        """Return the path of a file, which for .json and .jsonl may end in .gz."""
        for path in (self.directory / name, self.directory / f"{name}.gz"):
            if path.is_file():
                return path
        pytest.skip(f"no {name} in {self.directory}")


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


@functools.cache
def _parse_lines(path: Path) -> list[dict[str, Any]]:
    # Split at "\n" alone: texts may hold U+2028 and others that splitlines() would split at.
    return [json.loads(line) for line in _read(path).split(b"\n") if line.strip()]


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
    config.addinivalue_line(
        "markers", "golden(name, prefix=''): run once per case of a golden .jsonl file (`case`)"
    )
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--golden") is None:
        return
    others = [item for item in items if not _is_golden(item)]
    items[:] = [item for item in items if _is_golden(item)]
    config.hook.pytest_deselected(items=others)


def _is_golden(item: pytest.Item) -> bool:
    asked = any(item.get_closest_marker(name) for name in ("golden", "golden_files"))
    return asked or "golden" in getattr(item, "fixturenames", ())


def _directory(config: pytest.Config) -> Path:
    chosen = config.getoption("--golden")
    if chosen is None:
        return _HOME
    return (config.invocation_params.dir / str(chosen)).resolve()


@pytest.fixture(scope="session")
def golden(pytestconfig: pytest.Config) -> GoldenDirectory:
    """The golden vectors of this run."""
    return GoldenDirectory(_directory(pytestconfig))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    directory = GoldenDirectory(_directory(metafunc.config))
    markers = list(metafunc.definition.iter_markers("golden"))
    if markers:
        metafunc.parametrize("case", _case_params(directory, markers))
    patterns = [marker.args[0] for marker in metafunc.definition.iter_markers("golden_files")]
    if patterns:
        metafunc.parametrize("golden_file", _file_params(directory, patterns))


def _case_params(directory: GoldenDirectory, markers: list[pytest.Mark]) -> list[Any]:
    params: list[Any] = []
    for marker in reversed(markers):
        try:
            cases = directory.cases(marker.args[0], prefix=marker.kwargs.get("prefix", ""))
        except pytest.skip.Exception as reason:
            params.append(_skipped(marker.args[0], str(reason)))
            continue
        params.extend(pytest.param(case, id=str(case["id"])) for case in cases)
    return params


def _file_params(directory: GoldenDirectory, patterns: list[str]) -> list[Any]:
    params: list[Any] = []
    for pattern in reversed(patterns):
        paths = sorted(directory.directory.glob(pattern))
        params.extend(pytest.param(path, id=path.name) for path in paths)
        if not paths:
            params.append(_skipped(pattern, f"no {pattern} in {directory.directory}"))
    return params


def _skipped(identity: str, reason: str) -> Any:
    return pytest.param(None, id=identity, marks=pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority with certificates of a server at 127.0.0.1 and of a client."""
    # Not at the top: `pytest --golden DIR` reads this file before it reads where modules are.
    from certificates import Certificates

    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for the whole run: a start takes about ten seconds."""
    pytest.importorskip("pyspark")
    from sparrowmq.spark import spark_session

    session = spark_session(
        "sparrowmq tests",
        master="local[2]",
        short_lived=True,
        conf={"spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"},
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
