"""Long proofs in parts: those that are done are noted, so that a proof that was stopped goes on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[3]
NOTES = ROOT / ".cache/gate"
Part = TypeVar("Part")


def run_parts(
    run_part: Callable[[Part], Any],
    parts: Sequence[Part],
    *,
    is_passed: Callable[[Any], bool],
    notes: Path | None,
    processes: int = 1,
) -> list[Any]:
    """Run the parts that are not noted, note those that pass, and return what came of all.

    Args:
        run_part: what it returns must survive JSON.
        parts: each is run once; its text is its name in the notes.
        is_passed: tells from what came of a part whether it need not run again on this code.
        notes: the file of the parts that are done; None to note nothing.
        processes: how many parts run at once.
    """
    done: dict[str, Any] = {}
    if notes is not None and notes.exists():
        done = json.loads(notes.read_text())
    results = {str(part): done.get(str(part)) for part in parts}
    with ThreadPoolExecutor(processes) as pool:
        running = {
            pool.submit(run_part, part): str(part) for part in parts if str(part) not in done
        }
        try:
            for ended in as_completed(running):
                name = running[ended]
                results[name] = ended.result()
                if is_passed(results[name]):
                    done[name] = results[name]
                    if notes is not None:
                        # Whole, whenever the proof is stopped.
                        written = notes.with_suffix(".new")
                        written.write_text(json.dumps(done))
                        written.replace(notes)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return list(results.values())


def ranges(count: int, size: int) -> list[tuple[int, int]]:
    """Cut so many seeds or kills into parts: where each begins, and its length."""
    return [(begin, min(size, count - begin)) for begin in range(0, count, size)]


def notes_of_code(name: str, *parts: str) -> Path | None:
    """Return where the parts of a proof are noted, None if the code is not a commit's.

    Args:
        parts: the directories whose change makes the notes void; the code's and the proofs' are
            always.
    """
    git, directories = ("git", "-C", str(ROOT)), ("src", "tests/support/gate", *parts)
    status = [*git, "status", "--porcelain", "--", *directories]
    if subprocess.check_output(status):
        return None
    trees = [
        subprocess.check_output([*git, "rev-parse", f"HEAD:{each}"], text=True)[:12]
        for each in directories
    ]
    NOTES.mkdir(parents=True, exist_ok=True)
    return NOTES / f"{'-'.join((name, *trees))}.json"
