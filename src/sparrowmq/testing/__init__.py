"""For tests of programs that use SparrowMQ: clusters to test against, and a pytest plug-in.

The first use of a name below loads its module: pytest imports the plug-in at every start, also in
projects that do not use it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparrowmq.testing.embedded import EmbeddedCluster
    from sparrowmq.testing.in_process import InProcessCluster
    from sparrowmq.testing.questions import ClusterFailed, read_messages, wait_until_consumed

__all__ = [
    "ClusterFailed",
    "EmbeddedCluster",
    "InProcessCluster",
    "read_messages",
    "wait_until_consumed",
]

_MODULES = {
    "ClusterFailed": "sparrowmq.testing.questions",
    "EmbeddedCluster": "sparrowmq.testing.embedded",
    "InProcessCluster": "sparrowmq.testing.in_process",
    "read_messages": "sparrowmq.testing.questions",
    "wait_until_consumed": "sparrowmq.testing.questions",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)
