"""Pack the objects that Spark sends between processes, so that a missing package is a clear error.

Spark pickles the data source, its readers and its writers, and unpickles them beside the driver and
in every executor. If this package or a dependency is missing there, unpickling fails before any of
our code runs, and the error stands below a page of Java. These objects are therefore packed with a
small function that travels *by value*, needs only Python, and checks for the packages first.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

Packed = tuple[Callable[[bytes], Any], tuple[bytes]]


def pack(make: Callable[..., Any], *arguments: Any) -> Packed:
    """Return the value for `__reduce__`, which makes the object again in another process.

    Args:
        make: a class or function of this package.
        arguments: plain values for `make`.
    """
    packed: bytes = cloudpickle.dumps((make, arguments))  # type: ignore[no-untyped-call]
    return _unpack, (packed,)


def settle() -> None:
    """Make Spark's garbage collection after every task cheap in a process that unpacks often.

    The collection examines all objects of the imported packages and takes some 45 ms of a core.
    Frozen objects are not examined. The objects are frozen after a few calls, when the first tasks
    have imported the packages.
    """
    global _freezes_left
    if _freezes_left:
        _freezes_left -= 1
        gc.freeze()


_freezes_left = 8


def _unpack(payload: bytes) -> Any:
    import importlib.util
    import os
    import platform
    import sys

    from pyspark import cloudpickle

    for name in ("msgspec", "numpy", "pyarrow", "sparrowmq.spark.partition"):
        try:
            # Processes that only plan never import the largest packages.
            if name in ("numpy", "pyarrow") and importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(name=name)
            if name not in ("numpy", "pyarrow"):
                importlib.import_module(name)
        except ModuleNotFoundError as error:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            missing = error.name or name
            advice = (
                "ship it (rename the wheel to .zip for --py-files or addPyFile; for a stream also "
                "put it on the driver's PYTHONPATH) or install it on every machine"
                if missing.startswith("sparrowmq")
                else "install it in this Python on every machine, or name the right Python in "
                "PYSPARK_PYTHON"
            )
            raise ModuleNotFoundError(
                f"sparrowmq: the package {missing!r} is missing on {platform.node()} in "
                f"{sys.executable} (Python {platform.python_version()}): {advice}",
                name=missing,
            ) from None
    importlib.import_module("sparrowmq.spark.shipping").settle()
    make, arguments = cloudpickle.loads(payload)
    return make(*arguments)


# This name makes cloudpickle send the function by value.
_unpack.__module__ = "__main__"
