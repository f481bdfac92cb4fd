"""For tests of programs that use SparrowMQ: a cluster to test against."""

from __future__ import annotations

from sparrowmq.testing.embedded import ClusterFailed, EmbeddedCluster

__all__ = ["ClusterFailed", "EmbeddedCluster"]
