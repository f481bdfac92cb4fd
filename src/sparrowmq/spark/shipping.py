"""What Spark carries between processes, packed so that a missing package is an error in words.

Spark pickles the data source, its readers and its writers, and unpickles them where they are
needed: beside the driver, and in every executor. Where this package or one it needs is missing,
unpickling fails before any line of ours has run, below a page of Java. So these objects are packed
with a small function that travels *by value*, needs nothing but Python, and looks first.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

Packed = tuple[Callable[[bytes], Any], tuple[bytes]]


def pack(make: Callable[..., Any], *arguments: Any) -> Packed:
    """Return what `__reduce__` is to return: how to make an object again elsewhere.

    Args:
        make: a class or function of this package.
        arguments: plain values for it.
    """
    packed: bytes = cloudpickle.dumps((make, arguments))  # type: ignore[no-untyped-call]
    return _unpack, (packed,)


def settle() -> None:
    """Spare a process that unpacks again and again what Spark does after every task.

    It collects garbage then, which looks at all that the packages hold and takes some 45 ms of a
    core; what is frozen is not looked at. What the first tasks import is there after a few calls.
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
            # Processes that only plan never import the largest of them.
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


# By this cloudpickle knows that the function must travel by value.
_unpack.__module__ = "__main__"
