"""How much memory and processor time a crew's processes took, where the system says it (Linux)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Usage:
    """The sum over all processes, sampled now and then.

    A process that ends between two samples has used a little more than was seen.
    """

    memory_peak_mib: int | None = None
    _cpu_s: dict[tuple[str, int], float] = field(default_factory=dict)

    @property
    def cpu_s(self) -> dict[str, float]:
        """Seconds of processor time by the name that a process was started by, most first."""
        totals: dict[str, float] = {}
        for (name, _), cpu_s in self._cpu_s.items():
            totals[name] = totals.get(name, 0.0) + cpu_s
        return {name: round(totals[name], 2) for name in sorted(totals, key=lambda n: -totals[n])}

    def add(self, processes: Mapping[int, str]) -> None:
        """Take a sample of these processes, each with the name that it was started by."""
        memory_kib = 0
        for process_id, name in processes.items():
            directory = Path(f"/proc/{process_id}")
            try:
                stat, rollup = (directory / "stat").read_text(), directory / "smaps_rollup"
                memory_kib += _proportional_kib(rollup.read_text())
            except OSError:
                # It ended meanwhile.
                continue
            self._cpu_s[name, process_id] = _processor_seconds(stat)
        if memory_kib:
            self.memory_peak_mib = max(self.memory_peak_mib or 0, memory_kib // 1024)


def _proportional_kib(rollup: str) -> int:
    """Return the process's share of the memory that it uses, alone or with others."""
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))


def _processor_seconds(stat: str) -> float:
    # utime and stime are the 14th and 15th fields; the name, in brackets, may hold blanks.
    fields = stat[stat.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
