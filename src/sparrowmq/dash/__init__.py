"""The live page: shows in a browser who owns each queue of a cluster, since when and why."""
