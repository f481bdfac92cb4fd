"""The Lab: stages a failure on a cluster of its own and shows the doctor's findings.

A drill runs in a process of its own (`python -m sparrowmq.drills KIND`) because it handles its
process's signals and uses most of a processor. One drill runs at a time. No drill touches the
cluster that the page watches.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from itertools import groupby

from starlette.responses import RedirectResponse, Response

from sparrowmq.dash.group_page import DURATION_COLUMNS, Line, duration_cells, speak_spans
from sparrowmq.dash.matrix import TONE_COUNT, MatrixColumn, letter_of
from sparrowmq.dash.strips import TimeWindow, draw_bands
from sparrowmq.dash.tables import Cell, PageTable, TableColumn
from sparrowmq.dash.watcher import Watcher
from sparrowmq.dash.web import View, Visit
from sparrowmq.drills.drill import SCRIPTS, Report, decode_report
from sparrowmq.drills.kinds import DrillKind
from sparrowmq.drills.stage import LEAD_MS
from sparrowmq.errors import UsageError
from sparrowmq.words.catalog import Words

# The subject of the page's news.
SUBJECT = "lab"
# A drill that takes longer is ended.
LIMIT_S = 300.0
# The most lines of progress, and bytes of the result, that are kept.
LINES_MAX, OUTPUT_BYTES_MAX = 50, 4 * 1024 * 1024
_CHUNK_BYTES = 65_536
# The time that an ended drill has to end its members.
_END_S = 10.0


@dataclass(slots=True, kw_only=True)
class Drill:
    """A drill: its progress so far, and after its end the result or the reason for its failure."""

    kind: DrillKind
    lines: list[str] = field(default_factory=list)
    result: Report | None = None
    failure: str = ""


class Lab:
    """Runs drills, one at a time, and keeps the last one."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._task: asyncio.Task[None] | None = None
        self.drill: Drill | None = None

    @property
    def is_running(self) -> bool:
        """Whether a drill is running."""
        return self._task is not None and not self._task.done()

    def start(self, kind: DrillKind) -> None:
        """Start a drill. Raises: UsageError while another is running."""
        if self.is_running:
            raise UsageError("a drill is under way; wait for its end, or end it")
        self.drill = Drill(kind=kind)
        self._task = asyncio.create_task(self._run(self.drill), name="drill")

    async def stop(self) -> None:
        """End the running drill and its processes."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, drill: Drill) -> None:
        process: asyncio.subprocess.Process | None = None
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sparrowmq.drills", drill.kind),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=OUTPUT_BYTES_MAX,
            )
            async with asyncio.timeout(LIMIT_S):
                output, _ = await asyncio.gather(
                    _read_all(process.stdout), self._note_lines(drill, process.stderr)
                )
                await process.wait()
            if process.returncode:
                drill.failure = drill.lines[-1] if drill.lines else "the drill ended at once"
            else:
                drill.result = decode_report(output)
        except asyncio.CancelledError:
            drill.failure = "the drill was ended before its result"
            raise
        except TimeoutError:
            drill.failure = f"the drill did not end within {LIMIT_S:.0f} s"
        except OSError as error:
            drill.failure = f"the drill's process cannot be started or read: {error.strerror}"
        except ValueError as error:
            drill.failure = f"the drill's result cannot be read: {error}"
        finally:
            await _end(process)
            await self._watcher.announce(SUBJECT)

    async def _note_lines(self, drill: Drill, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        async for line in stream:
            text = line.decode(errors="replace").strip()
            drill.lines = [*drill.lines, text][-LINES_MAX:]
            await self._watcher.announce(SUBJECT)


async def _read_all(stream: asyncio.StreamReader | None) -> bytes:
    assert stream is not None
    output = b""
    while chunk := await stream.read(_CHUNK_BYTES):
        output += chunk
        if len(output) > OUTPUT_BYTES_MAX:
            raise ValueError(f"it has more than {OUTPUT_BYTES_MAX} bytes")
    return output


async def _end(process: asyncio.subprocess.Process | None) -> None:
    """End a drill's process, which ends its members."""
    if process is None or process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def show_lab(lab: Lab, visit: Visit) -> View:
    """Show the drills, and the progress of the last one."""
    drill, words = lab.drill, visit.words
    context: dict[str, object] = {
        "scripts": SCRIPTS,
        "drill": drill,
        "is_running": lab.is_running,
        "findings": (),
        "lines": (),
        "members": (),
    }
    tables: tuple[PageTable, ...] = ()
    if drill is not None and drill.result is not None:
        result = drill.result
        columns = _columns(result)
        tables = (_phase_table(result, words),)
        context |= {
            "findings": result.findings,
            "messages": result,
            "members": tuple(columns.values()),
            "lines": _lines(result, columns, words),
            "lead_ms": LEAD_MS,
            "until_ms": picture_length_ms(result),
        }
    return View(template="lab.html", title="Lab", tables=tables, context=context, news=SUBJECT)


async def start_drill(lab: Lab, visit: Visit) -> Response:
    """Start a drill, or end the running one.

    Raises: UsageError for an unknown drill, while another runs, or to those who may only read.
    """
    if visit.session.is_reader:
        raise UsageError(
            "you may only read; to run drills, log in with the administrator's password"
        )
    asked = visit.form.get("drill", "")
    if asked == "stop":
        await lab.stop()
    elif asked in set(DrillKind):
        lab.start(DrillKind(asked))
    else:
        raise UsageError(f"there is no drill {asked!r}; choose one of {', '.join(DrillKind)}")
    return RedirectResponse("/lab", status_code=303)


def _columns(result: Report) -> dict[str, MatrixColumn]:
    names = sorted({name for span in result.spans for name in span.owners or ()})
    return {
        name: MatrixColumn(name, letter_of(number), f"c{number % TONE_COUNT + 1}")
        for number, name in enumerate(names)
    }


def picture_length_ms(result: Report) -> int:
    """Return the length of the picture: until shortly after the last change.

    If some queue still has no owner or several, the picture lasts until the end of the drill.
    """
    if result.phases[-1].rebalance.settled_ms is None:
        return max(span.end_ms for span in result.spans)
    return int(max(0, *(span.start_ms for span in result.spans)) * 1.1) + LEAD_MS


def _lines(result: Report, columns: dict[str, MatrixColumn], words: Words) -> list[Line]:
    """Draw the owners of each queue from the event on."""
    window = TimeWindow(-LEAD_MS, picture_length_ms(result))
    lines = []
    for queue, spans in groupby(result.spans, key=lambda span: span.queue):
        shown = [s._replace(end_ms=min(s.end_ms, window.until_ms)) for s in spans]
        strip = draw_bands(shown, columns, window, marks=(0,), nobody=words("nobody"))
        lines.append(Line(str(queue.queue_id), strip, speak_spans(shown, columns, words)))
    return lines


def _phase_table(result: Report, words: Words) -> PageTable:
    return PageTable(
        name="phases",
        title="Effect",
        columns=(
            TableColumn("event", "event", "prose"),
            *DURATION_COLUMNS,
            TableColumn("moved", "queues moved", "number"),
        ),
        rows=[
            [Cell(words(event)), *duration_cells(rebalance), Cell(len(rebalance.moves))]
            for event, rebalance in result.phases
        ],
    )
