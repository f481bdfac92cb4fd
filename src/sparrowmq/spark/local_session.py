"""Start a Spark session, which by default stays on this machine.

Spark's JVM starts the Python of PYSPARK_DRIVER_PYTHON to look for data sources, to plan them, and
to read. It first asks a shell for this Python, without quotes: where the path has a blank or
another character of the shell, Spark finds no data source, and says nothing. It gives the process
that plans a stream ten seconds to connect back, without a setting for more; the imports of this
process alone take a second of a core, and far more time beside other work.

Local sessions therefore start Python by a *launcher*: a program with a plain name on the PATH.
Every session has the directory `planning_start` on PYTHONPATH, by which Python runs
`planning_process` in place of Spark's module for streams.
"""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import shutil
import sys
import tempfile
import traceback
import zlib
from collections.abc import Mapping
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any

from sparrowmq.errors import ConfigError, UsageError, install_command
from sparrowmq.spark.java import JavaHome, find_java, write_program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The settings of a session on this machine; on a cluster the cluster's own hold.
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
}
_PYTHON = "sparrowmq-python"
_LAUNCHER = """#!/bin/sh
# Starts the Python processes of Spark on this machine.
exec {python} "$@"
"""


_COMMON = {"spark.sql.session.timeZone": "UTC"}


def prepare_environment(java: JavaHome | None = None) -> JavaHome:
    """Set the environment variables that Spark's launcher and its Python workers read.

    JAVA_HOME becomes the Java found, PYSPARK_PYTHON this interpreter (workers of another one lack
    this package), PYSPARK_DRIVER_PYTHON a launcher of this interpreter, and SPARK_LOCAL_IP the
    loopback address unless it is set already. PYTHONPATH gets the directory by which streams start
    on a busy machine. For sessions whose executors run on this machine.
    """
    java = java or find_java()
    _prepare_driver(java)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = _launcher_name()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return java


def spark_session(
    app_name: str,
    *,
    master: str | None = None,
    driver_memory: str = "1g",
    short_lived: bool = False,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start, or get, a Spark session, with times in UTC.

    Args:
        app_name: the application's name.
        master: Spark's master URL. A local session has no web UI and stays on loopback. Executors
            of another master find the driver and their Python by Spark's own settings. None takes
            the master of `spark-submit`, and without `spark-submit` local[*].
        driver_memory: the JVM's heap, which in local mode serves the executors too. `spark-submit`
            has started the JVM already, and has an option of its own.
        short_lived: for a session of a few minutes: the JVM compiles quickly rather than well.
            The start and the first jobs then take less than half the processor time; jobs over
            many millions of rows take more.
        conf: further Spark settings, which override the settings made here.

    Raises: ConfigError if there is no Java, or PySpark is not installed.
    """
    settings = dict(_COMMON)
    if master is None and not is_submitted():
        master = "local[*]"
    is_local = master is not None and master.startswith("local")
    if master is not None:
        if is_local:
            prepare_environment()
            settings |= _LOCAL
        else:
            _prepare_driver(find_java())
        settings |= {
            "spark.driver.memory": driver_memory,
            "spark.ui.showConsoleProgress": "false",
            **({"spark.driver.extraJavaOptions": _QUICK_JAVA} if short_lived else {}),
        }
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(
            f"PySpark is not installed ({error}); {install_command('spark')}"
        ) from None
    settings |= conf or {}
    builder = SparkSession.builder.appName(app_name)
    if is_local and SparkSession.getActiveSession() is None:
        # Spark would make `spark-warehouse` in the working directory.
        settings.setdefault("spark.sql.warehouse.dir", _warehouse())
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except BaseException as error:
        _end_java(error)
        raise


def is_submitted() -> bool:
    """Return whether `spark-submit` runs this program, and so has chosen master and JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def clone_session(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Return a session with the same settings, views and sources, and other values of `conf`.

    Raises: UsageError if the session has no JVM, as with Spark Connect.
    """
    require_classic(session)
    classic: Any = session
    clone: SparkSession = type(classic)(classic._sc, classic._jsparkSession.cloneSession())
    for key, value in conf.items():
        clone.conf.set(key, value)
    return clone


def register(session: SparkSession) -> None:
    """Register the data source in a session that does not find it by itself.

    Raises: UsageError if the session has no JVM, as with Spark Connect.
    """
    require_classic(session)
    classic: Any = session
    if not classic._jsparkSession.sessionState().dataSourceManager().dataSourceExists("rocketmq"):
        from sparrowmq.spark.source import RocketMQDataSource

        session.dataSource.register(RocketMQDataSource)


def require_classic(session: SparkSession) -> None:
    """Raise a UsageError if the session has no JVM, as with Spark Connect."""
    if not hasattr(session, "_jsc"):
        raise UsageError("a classic Spark session is needed; Spark Connect has no JVM here")


def _prepare_driver(java: JavaHome) -> None:
    """Set what the driver's JVM needs on every master."""
    os.environ["JAVA_HOME"] = str(java.path)
    start, given = str(Path(__file__).with_name("planning_start")), os.environ.get("PYTHONPATH")
    if given is None or start not in given.split(os.pathsep):
        os.environ["PYTHONPATH"] = f"{start}{os.pathsep}{given}" if given else start


def _end_java(error: BaseException) -> None:
    """End the Java that PySpark was about to connect to when this error came, as on Ctrl-C.

    PySpark removes the directory that this Java writes its port to, and leaves it running.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        # In `launch_gateway`, or still in Popen itself, which may have no process yet.
        java = frame.f_locals.get("proc" if frame.f_code.co_name == "launch_gateway" else "self")
        if isinstance(java, Popen) and java.pid:
            java.kill()
            java.wait()


def _launcher_name() -> str:
    """Return the name of this Python's launcher, which is on the PATH from now on."""
    if os.name == "nt":
        return sys.executable
    script = _LAUNCHER.format(python=shlex.quote(sys.executable))
    # The name depends on the Python, since environments may share a directory.
    name = f"python-{zlib.crc32(sys.executable.encode()):08x}/{_PYTHON}"
    directory = str(write_program(name, script).parent)
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([directory, *(p for p in path if p != directory)])
    return _PYTHON


@functools.cache
def _warehouse() -> str:
    """Make a directory for the tables that a session manages, as long as this process lives."""
    directory, owner = tempfile.mkdtemp(prefix="sparrowmq-warehouse-"), os.getpid()

    def remove() -> None:
        # A forked process runs this too.
        if os.getpid() == owner:
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory
