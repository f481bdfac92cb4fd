"""Deterministic simulation: the same client, broker, name server and store, in a world of our own.

The third driver. Time is a heap of events (`timeline.py`), the network (`network.py`) and the disk
(`storage.py`) are tables in memory, and every choice comes from one seed. What runs inside is the
code of production: operations on the scheduler of the other drivers (`driver.py`), the broker and
the name server as machines (`server.py`, `nodes.py`), the store over a disk that forgets.

A run (`run.py`) draws a scenario from its seed, breaks things for a while (`injector.py`), heals
them, and demands that everything is well again within a stated bound. `checkers.py` watches what
must never happen, after every event.
"""
