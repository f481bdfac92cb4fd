"""Run every proof and write the figures: `python -m gate [ROW ...]`; `make gate` runs all rows.

Rows that only compute run behind the others, with what these leave of the processor. A row that has
passed on this commit is not run again, so a gate that was stopped goes on. What the commands print
is kept in `.cache/gate`. With `--share 0.01` a hundredth of the kills, seeds and
frames is run; the figures say how many.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from gate.rows import ROWS, Row

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks/results/gate.json"
LOGS = ROOT / ".cache/gate"
HEADS = (
    "| | promise | command | last figure | | others who promise it |",
    "| | 承诺 | 命令 | 最近结果 | | 作同样承诺者 |",
)
ENDS = (signal.SIGINT, signal.SIGTERM)
NOT_REACHED = ("not reached{}: {}", "未达到{}：{}")
NEVER = ("not run yet", "尚未运行")
PART = (" ({:.0%} of a run)", "（完整运行的 {:.0%}）")
# Of `nice` and of a session.
LOWEST = 19
LOOK_S = 0.1


@dataclass
class Running:
    """A row whose command runs."""

    row: Row
    process: subprocess.Popen[bytes]
    log: Path
    share: float
    begun_s: float
    minutes_told: int = 0


def main() -> int:
    """Run rows; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m gate", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="all if none is named")
    parser.add_argument("--share", type=float, default=1, help="of the counts (default: 1)")
    options = parser.parse_args()
    # As Ctrl-C does: the command that runs ends with the gate.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    unknown = set(options.rows) - {row.name for row in ROWS}
    if unknown:
        names = ", ".join(row.name for row in ROWS)
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {names}")
    commit = _git("rev-parse", "--short=8", "HEAD")
    if _git("status", "--porcelain", "--untracked-files=no", "--", "src", "tests"):
        commit += " and changes"
    results, rows = read(), list[Row]()
    for row in ROWS:
        if options.rows and row.name not in options.rows:
            continue
        former = results.get(row.name, {})
        if former.get("passed") and former["commit"] == commit and former["share"] >= options.share:
            print(f"{row.name}: passed before, on {commit}")
        else:
            rows.append(row)
    with closing(run_rows(rows, share=options.share)) as ends:
        for row, result in ends:
            # Another gate may have written other rows meanwhile.
            results = read() | {row.name: result | {"commit": commit}}
            write(results)
    failed = [name for name, result in results.items() if not result["passed"]]
    print(f"failed: {', '.join(failed)}" if failed else "nothing failed")
    return 1 if failed else 0


def run_rows(rows: Sequence[Row], *, share: float) -> Generator[tuple[Row, dict[str, object]]]:
    """Run rows one after another, and behind them, one after another, those that only compute.

    Yields: each row as it ends, with what came of it. Whatever ends this ends the commands.
    """
    lanes = [deque(row for row in rows if row.is_behind == behind) for behind in (False, True)]
    running: dict[int, Running] = {}
    try:
        while running or any(lanes):
            for number, lane in enumerate(lanes):
                if number not in running and lane:
                    # A signal during the start would leave the command running.
                    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
                    try:
                        running[number] = begin(lane.popleft(), share=share)
                    finally:
                        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
                if number in running and (result := look_at(running[number])) is not None:
                    yield running.pop(number).row, result
            time.sleep(LOOK_S)
    finally:
        for each in running.values():
            kill(each)


def begin(row: Row, *, share: float) -> Running:
    """Start a row's command in a session of its own."""
    command = row.command.format(count=max(1, round(row.count * share)))
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{row.name}.log"
    print(f"{row.name}: {command}", flush=True)
    variables = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "tests/support"),
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            shlex.split(command),
            cwd=ROOT,
            env=variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, ENDS),
        )
    if row.is_behind:
        give_way(process.pid)
    return Running(row, process, log, share, time.monotonic())


def give_way(session: int) -> None:
    """Let a session have only what others leave of the processor."""
    os.setpriority(os.PRIO_PGRP, session, LOWEST)
    # Linux may divide the processor among sessions first: niceness then counts within each alone.
    with suppress(OSError):
        Path(f"/proc/{session}/autogroup").write_text(str(LOWEST))


def look_at(running: Running) -> dict[str, object] | None:
    """Return what came of a row once it has ended; print each minute how long it runs."""
    row, process = running.row, running.process
    code, taken_s = process.poll(), time.monotonic() - running.begun_s
    is_late = taken_s >= 60 * row.minutes
    if code is None and not is_late:
        if taken_s >= 60 * (running.minutes_told + 1):
            running.minutes_told += 1
            print(f"{row.name}: {running.minutes_told} minutes", flush=True)
        return None
    if code is None:
        kill(running)
    told = running.log.read_text(errors="replace")
    # Without a figure the last line says why.
    figure = row.figure(told) or (told.splitlines()[-1] if code and told else "")
    if code is None:
        figure = f"not done after {row.minutes} minutes; {figure}"
    elif code:
        figure = f"exit code {code}; {figure}"
    print(f"{row.name}: {figure or 'no figure'}, {taken_s:.0f} s; see {running.log}", flush=True)
    return {
        "passed": code == 0 and bool(figure),
        "figure": figure,
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(taken_s),
        "share": running.share,
    }


def kill(running: Running) -> None:
    """End a row's command and what it has started."""
    os.killpg(running.process.pid, signal.SIGKILL)
    running.process.wait()


def read() -> dict[str, Any]:
    """Return the results so far."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def write(results: dict[str, dict[str, object]]) -> None:
    """Write the results, and the table of each language."""
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    for language, name in enumerate(("gate.md", "gate.zh.md")):
        lines = [HEADS[language], "|---|---|---|---|---|---|"]
        for row in ROWS:
            result = results.get(row.name)
            told, when = tell(result, language), ""
            if result is not None:
                when = f"{result['date']}, {result['commit']}, {result['seconds']} s"
            command = row.command.format(count=row.count)
            lines.append(
                f"| {row.name} | {row.promise[language]} | `{command}` | {told} | {when} | "
                f"{row.others} |"
            )
        (RESULTS.parent / name).write_text("\n".join(lines) + "\n")


def tell(result: Mapping[str, Any] | None, language: int) -> str:
    """Return a row's figure in words of a language, and whether it is that of a whole run."""
    if result is None:
        return NOT_REACHED[language].format("", NEVER[language])
    figure = str(result["figure"])
    if result["passed"] and result["share"] >= 1:
        return figure
    part = "" if result["share"] >= 1 else PART[language].format(result["share"])
    return NOT_REACHED[language].format(part, figure)


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
