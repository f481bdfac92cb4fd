"""Long proofs in parts: those that are done are noted, so that a proof that was stopped goes on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
NOTES = ROOT / ".cache/gate"


def run_parts(
    run_part: Callable[[int, int], Any],
    *,
    count: int,
    size: int,
    notes: Path | None,
    processes: int = 1,
) -> list[Any]:
    """Run the parts that are not noted, note them, and return what came of all.

    Args:
        run_part: runs a part by the number that it begins at and its length; what it returns must
            survive JSON.
        count: the length of all parts together.
        size: the length of each but the last.
        notes: the file of the parts that are done; None to note nothing.
        processes: how many parts run at once.
    """
    done: dict[str, Any] = {}
    if notes is not None and notes.exists():
        done = json.loads(notes.read_text())
    parts = [(at, min(size, count - at)) for at in range(0, count, size)]
    with ThreadPoolExecutor(processes) as pool:
        running = {
            pool.submit(run_part, *part): str(part) for part in parts if str(part) not in done
        }
        for part in as_completed(running):
            done[running[part]] = part.result()
            if notes is not None:
                notes.write_text(json.dumps(done))
    return [done[str(part)] for part in parts]


def notes_of_code(name: str, *parts: str) -> Path | None:
    """Return where the parts of a proof are noted, None if the code is not a commit's.

    Args:
        parts: the directories whose change makes the notes void; "src" is one always.
    """
    git, directories = ("git", "-C", str(ROOT)), ("src", *parts)
    status = [*git, "status", "--porcelain", "--", "tests/support/gate", *directories]
    if subprocess.check_output(status):
        return None
    trees = [
        subprocess.check_output([*git, "rev-parse", f"HEAD:{each}"], text=True)[:12]
        for each in directories
    ]
    NOTES.mkdir(parents=True, exist_ok=True)
    return NOTES / f"{'-'.join((name, *trees))}.json"
