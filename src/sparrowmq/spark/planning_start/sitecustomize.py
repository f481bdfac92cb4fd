"""Runs `planning_process` in place of Spark's module that plans streams.

Python imports this module at its start where this directory is on PYTHONPATH, as `spark_session`
and `prepare_environment` have it; `docs/howto/spark-clusters.md` puts it there for `spark-submit`.
Only the driver's machine needs it. Tests: spark/test_local_session.py.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_SPARKS = "pyspark.sql.streaming.python_streaming_source_runner"
_OURS = "sparrowmq.spark.planning_process"


def _import_next() -> None:
    """Import the `sitecustomize` that Python would import without this one."""
    here = os.path.dirname(__file__)
    spec = PathFinder.find_spec("sitecustomize", [each for each in sys.path if each != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


# Windows would start another process, which Spark does not know.
if sys.orig_argv[1:] == ["-m", _SPARKS] and os.name == "posix":
    os.execv(sys.executable, [sys.executable, "-m", _OURS])
_import_next()
