"""Deterministic simulation: the same client, broker, name server and store in a simulated world.

The simulation is the third driver. Time is a heap of events (`virtual_time.py`), the network
(`network.py`) and the disk (`faulty_disk.py`) are tables in memory, and every choice comes from one
seed. The code inside is that of production: operations on the scheduler of the other drivers
(`driver.py`), the broker and the name server as machines (`machine.py`, `nodes.py`), the store over
a disk that loses unsynced data.

A run (`run.py`) draws a scenario from its seed, injects faults for a while (`injector.py`), heals
them, and demands a healthy world within a stated bound. After every event, `checkers.py` checks the
invariants.
"""
