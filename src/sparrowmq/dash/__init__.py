"""The live page: who owns which queue of a cluster, since when and why, in a browser."""
