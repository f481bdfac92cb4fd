"""The memory and processor time of child processes, on systems with /proc (Linux).

Tests: test_child_processes.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Usage:
    """The sum over all processes, from samples.

    The use of a process between its last sample and its end is not counted.
    """

    memory_peak_mib: int | None = None
    _cpu_s: dict[tuple[str, int], float] = field(default_factory=dict)

    @property
    def cpu_s(self) -> dict[str, float]:
        """The processor seconds by the processes' names, the most first."""
        totals: dict[str, float] = {}
        for (name, _), cpu_s in self._cpu_s.items():
            totals[name] = totals.get(name, 0.0) + cpu_s
        return {name: round(totals[name], 2) for name in sorted(totals, key=lambda n: -totals[n])}

    def add(self, processes: Mapping[int, str]) -> None:
        """Sample these processes, each given with its name."""
        memory_kib = 0
        for process_id, name in processes.items():
            directory = Path(f"/proc/{process_id}")
            try:
                stat = (directory / "stat").read_text(errors="replace")
                memory_kib += _proportional_kib((directory / "smaps_rollup").read_text())
            except OSError:
                # The process has ended.
                continue
            self._cpu_s[name, process_id] = _processor_seconds(stat)
        if memory_kib:
            self.memory_peak_mib = max(self.memory_peak_mib or 0, memory_kib // 1024)


def _proportional_kib(rollup: str) -> int:
    """Return the process's share of its memory, whole for private and in part for shared pages."""
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))


def _processor_seconds(stat: str) -> float:
    # utime and stime are the 14th and 15th fields; the name, in brackets, may hold blanks.
    fields = stat[stat.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
