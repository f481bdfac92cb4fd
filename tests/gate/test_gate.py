"""The gate's programs: that they see what is broken, and that servers stand a few turns of each."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from gate import __main__ as gate
from gate import disk, files, kills, members, parts, simulation, steady, wire
from gate.consumption import Consumption
from gate.ledger import Ledger
from gate.rows import ROWS, Row
from gate.server import Server
from sparrowmq.simulation.run import SITUATIONS
from waiting import wait_until

PLACE = ("T", 0)


def record(offset: int, body: bytes) -> wire.Record:
    return wire.Record(0, offset, offset * 100, body, {})


def broken(ledger: Ledger) -> dict[str, int]:
    ledger.end_of(PLACE)
    ledger.end()
    return dict(ledger.broken)


def test_ledger_finds_nothing_where_all_came() -> None:
    ledger = Ledger()
    ledger.place("T", 0, 0, [b"a 0", b"a 1"], "single")
    ledger.owe("T", b"late", "delayed")
    for offset, body in enumerate((b"a 0", b"a 1", b"late")):
        ledger.read(PLACE, record(offset, body))

    assert broken(ledger) == {}
    assert ledger.acknowledged == {"single": 2, "delayed": 1}


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ([], {"lost": 2}),
        ([(0, b"a 0")], {"lost": 1}),
        ([(0, b"b 7"), (1, b"a 0"), (2, b"a 1")], {"moved": 2}),
        ([(0, b"a 0"), (1, b"a 1"), (2, b"a 0")], {"twice": 1, "out of order": 1}),
        ([(0, b"a 0"), (2, b"a 1")], {"holes": 1, "lost": 1}),
    ],
)
def test_ledger_finds_what_is_lost_moved_doubled_or_out_of_order(
    shown: list[tuple[int, bytes]], expected: dict[str, int]
) -> None:
    ledger = Ledger()
    ledger.place("T", 0, 0, [b"a 0", b"a 1"], "single")
    for offset, body in shown:
        ledger.read(PLACE, record(offset, body))

    assert broken(ledger) == expected


def test_ledger_finds_doubles_of_all_kinds_and_what_comes_early() -> None:
    ledger = Ledger()
    ledger.owe("T", b"late", "delayed", due_ms=2_000)
    for offset, stored_ms in enumerate((1_999, 2_000)):
        ledger.read(PLACE, record(offset, b"late")._replace(stored_ms=stored_ms))

    assert broken(ledger) == {"early": 1, "twice": 1}


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        ([record(0, b"a"), record(1, b"b")], {}),
        ([record(0, b"a"), record(1, b"c")], {"changed since it was read": 1}),
        (
            [record(0, b"a"), record(1, b"b")._replace(position=7)],
            {"changed since it was read": 1},
        ),
        (
            [record(0, b"a")],
            {"changed since it was read": 1, "other messages than were read": 1},
        ),
        (
            [record(0, b"a"), record(1, b"b"), record(2, b"c")],
            {"other messages than were read": 1},
        ),
    ],
    ids=["as before", "body", "position", "gone", "more"],
)
def test_ledger_finds_what_has_changed_since_it_was_read(
    again: list[wire.Record], expected: dict[str, int]
) -> None:
    ledger = Ledger()
    for offset, body in enumerate((b"a", b"b")):
        ledger.read(PLACE, record(offset, body))
    ledger.read_again(PLACE, again)

    assert broken(ledger) == expected


def test_popped_message_comes_neither_early_nor_after_its_acknowledgement() -> None:
    ledger = Ledger()
    consumption = Consumption(ledger, "T", 1)

    def pop(offset: int, at_ms: int) -> None:
        fields = {"popTime": f"{at_ms}", "invisibleTime": "1000"}
        consumption.note_popped(offset, wire.Answer(0, "", fields, b""))

    pop(0, 5_000)
    pop(0, 6_000)
    consumption.note_done(0)
    assert ledger.broken == {}
    pop(0, 7_000)
    pop(1, 5_000)
    pop(1, 5_999)

    assert ledger.broken == {"popped after its acknowledgement": 1, "popped early": 1}


def test_kills_that_lack_a_kind_or_start_slowly_prove_nothing() -> None:
    acknowledged = dict.fromkeys(kills.KINDS, 1)

    def failures(starts_s: list[float], **changed: int) -> list[str]:
        return kills.find_failures({"acknowledged": acknowledged | changed, "starts_s": starts_s})

    assert failures([0.5, 1.4]) == []
    assert failures([0.5, 1.6]) == ["starts of 1.05 s on average, over 1.0 s"]
    assert failures([0.5], **{"at a time": 0}) == ["nothing of: at a time"]


def test_ledger_finds_what_never_came_and_what_should_not_have_come() -> None:
    ledger = Ledger()
    ledger.owe("T", b"late", "delayed")
    ledger.undo(b"undone")
    ledger.read(PLACE, record(0, b"undone"))

    assert broken(ledger) == {"lost": 1, "rolled back, but there": 1}


@pytest.mark.slow
def test_broker_that_is_killed_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    figures = kills.run(2, seed=1, data=tmp_path / "data")

    assert figures["broken"] == {}, figures["examples"]
    assert sum(figures["acknowledged"].values()) >= 2 * kills.ACKNOWLEDGED_MIN


MISTAKES = f"""
import sys
sys.path.append({str(gate.ROOT / "src")!r})
from sparrowmq.broker import delivered_before, pop_log, queue_lock_table, timer_messages
from sparrowmq.broker.config_saving import ConfigSaving

slot_of = timer_messages._slot
delivered_before.DeliveredBefore.has = lambda *_, **__: False
queue_lock_table.QueueLockTable.restore = lambda *_, **__: None
timer_messages._slot = lambda due_ms: slot_of(due_ms) - 5
ConfigSaving.save_work = lambda *_, **__: None
pop_log.decode_pop_changes = lambda *_: []
"""


@pytest.mark.slow
def test_mistakes_of_a_broker_that_is_killed_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(MISTAKES)
    monkeypatch.setattr(kills, "Server", partial(Server, source=tmp_path))

    figures = kills.run(3, seed=1, data=tmp_path / "data")

    seen = {"twice", "early", "offset behind", "lock lost", "popped after its acknowledgement"}
    assert seen <= set(figures["broken"])


@pytest.mark.slow
def test_broker_whose_disk_is_full_serves_again_and_loses_nothing() -> None:
    try:
        with disk.small_disk() as directory:
            figures = disk.run(3, seed=1, disk=directory)
    except PermissionError as error:
        pytest.skip(f"no file system can be mounted here: {error}")

    assert figures["broken"] == {}, figures["examples"]
    assert figures["refused"]


def test_kills_end_with_one_line_once_the_broker_refuses_messages(tmp_path: Path) -> None:
    options = ("--disk-full-percent", "0")

    with pytest.raises(SystemExit, match=r"^kill 1 of 1000: the broker refuses .*disk"):
        kills.run(1_000, seed=1, data=tmp_path / "data", options=options)


def test_every_row_has_a_command_that_exists() -> None:
    makefile = (gate.ROOT / "Makefile").read_text()
    for row in ROWS:
        words = row.command.split()
        if words[0] == "make":
            assert f"\n{words[1]}:" in makefile
        for word in words:
            if word.startswith("tests/"):
                assert (gate.ROOT / word).exists()


def test_row_fails_by_its_exit_code_and_by_a_missing_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LOGS", tmp_path)
    row = Row("r", ("", ""), "python -c 'print(\"3 passed\"); exit({count})'", count=1)

    silent_row = Row("r", ("", ""), "python -c pass")
    fails, silent = (result for _, result in gate.run_rows([row, silent_row], share=1))

    assert (fails["passed"], fails["figure"]) == (False, "exit code 1; 3 passed")
    assert (silent["passed"], silent["figure"]) == (False, "")


def test_rows_that_only_compute_run_behind_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LOGS", tmp_path)
    pid, goal = tmp_path / "pid", tmp_path / "goal"
    until = "do sleep 0.02; done; echo 1 passed"
    behind = f"sh -c 'echo $$ > {pid}; until [ -e {goal} ]; {until}'"
    front = f"sh -c 'until [ -s {pid} ]; {until}'"
    names = {"behind": behind, "first": front, "second": front}
    rows = [Row(each, ("", ""), names[each], is_behind=each == "behind") for each in names]

    ends = gate.run_rows(rows, share=1)
    ended = [next(ends)[0].name, next(ends)[0].name]
    session = int(pid.read_text())
    given_way = os.getpriority(os.PRIO_PROCESS, session)
    shares = Path(f"/proc/{session}/autogroup")
    of_session = shares.read_text() if os.access(shares, os.W_OK) else " nice 19\n"
    goal.touch()
    ended += [row.name for row, _ in ends]

    assert ended == ["first", "second", "behind"]
    assert given_way == 19
    assert of_session.endswith(" nice 19\n")


ENDLESS_GATE = """
import sys
from functools import partial
from pathlib import Path
from gate import __main__ as gate
from gate.rows import Row

home = Path(sys.argv.pop())
gate.LOGS, gate.RESULTS = home, home / "gate.json"
command = f"sh -c 'echo $$ > {home}/pid%s; exec sleep 600'"
gate.ROWS = tuple(Row(f"r{n}", ("", ""), command % n, is_behind=bool(n)) for n in range(2))
gate.main()
"""


def test_gate_that_is_ended_ends_the_commands_that_run(tmp_path: Path) -> None:
    pids = [tmp_path / "pid0", tmp_path / "pid1"]
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS_GATE, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(gate.ROOT / "tests/support")},
    ) as process:
        wait_until(
            "the rows' commands run", lambda: all(pid.exists() and pid.read_text() for pid in pids)
        )
        process.terminate()
        process.wait(60)

    ran = [Path(f"/proc/{pid.read_text().strip()}") for pid in pids]
    wait_until("their end", lambda: not any(each.exists() for each in ran))


def test_gate_keeps_the_rows_that_another_gate_writes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "gate.json"
    monkeypatch.setattr(gate, "LOGS", tmp_path)
    monkeypatch.setattr(gate, "RESULTS", results)
    other = {"other": {"passed": True, "figure": "1 passed"}}
    command = f"sh -c 'echo \"$0\" > {results}; echo 2 passed' '{json.dumps(other)}'"
    monkeypatch.setattr(
        gate, "ROWS", (Row("r", ("", ""), command.replace("{", "{{").replace("}", "}}")),)
    )
    monkeypatch.setattr(sys, "argv", ["gate"])

    assert gate.main() == 0

    written = json.loads(results.read_text())
    assert {name: each["figure"] for name, each in written.items()} == {
        "other": "1 passed",
        "r": "2 passed",
    }


def line(pid: int, offset: int, time_s: float) -> members.Line:
    return members.Line(pid, 0, offset, time_s)


@pytest.mark.parametrize(
    ("lines", "broken", "again"),
    [
        pytest.param([line(1, 0, 1), line(2, 1, 2), line(2, 2, 3)], {}, {}, id="each once"),
        pytest.param(
            [line(1, 0, 1), line(1, 1, 4), line(2, 1, 6), line(2, 2, 7)],
            {},
            {1: 1},
            id="again after the kill",
        ),
        pytest.param(
            [line(1, 0, 1), line(1, 1, 3.9), line(2, 1, 6), line(2, 2, 7)],
            {"again, and consumed long before the kill": 1},
            {1: 1},
            id="again though it must have been committed",
        ),
        pytest.param(
            [line(1, 0, 1), line(2, 0, 4), line(2, 1, 6), line(2, 2, 7)],
            {"twice, though the former member lives": 1},
            {},
            id="twice before the kill",
        ),
        pytest.param(
            [line(1, 0, 4), line(2, 0, 6), line(3, 0, 7), line(3, 1, 8), line(3, 2, 9)],
            {"twice, though the former member lives": 1},
            {1: 1},
            id="twice by two that live",
        ),
        pytest.param(
            [line(1, 1, 1), line(1, 0, 2), line(2, 2, 6)], {"out of order": 2}, {}, id="mixed up"
        ),
        pytest.param([line(1, 0, 1), line(1, 1, 2)], {"lost": 1}, {}, id="lost"),
    ],
)
def test_members_are_judged(
    lines: list[members.Line], broken: dict[str, int], again: dict[int, int]
) -> None:
    ledger = Ledger()
    came_again = members.judge(lines, [3], {1: 5.0}, ledger, is_ordered=True)

    assert (ledger.broken, came_again) == (broken, again)
    assert len(ledger.examples) == ledger.broken.total()


def test_longest_pause_is_that_of_any_queue_until_the_end() -> None:
    lines = [
        members.Line(1, queue_id, 0, begin_s + queue_id / 100)
        for begin_s in (1, 2, 3.5)
        for queue_id in range(members.QUEUES)
    ]

    assert members.longest_pause_s(lines, 1, 3.6) == pytest.approx(1.5)
    assert members.longest_pause_s(lines, 1, 9) == pytest.approx(5.5)


def test_kills_of_members_that_had_nothing_prove_nothing() -> None:
    assert members.find_failures(4, 3) == []
    assert members.find_failures(4, 2) == ["2 of 4 members had consumed anything"]


LATE_COMMITS = """
from sparrowmq.membership import member
member.commit_wait_ms = lambda *_, **__: 60_000
"""


@pytest.mark.slow
def test_members_that_commit_late_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MEMBER", LATE_COMMITS + members.MEMBER)

    figures = members.run(2, seed=1, directory=tmp_path)

    assert figures["broken"].keys() == {"again, and consumed long before the kill"}


@pytest.mark.slow
def test_group_that_consumes_nothing_between_two_kills_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = members.MEMBER.replace("os.write(output, text.encode())", "pass")
    monkeypatch.setattr(members, "MEMBER", silent)
    monkeypatch.setattr(members, "WAIT_S_MAX", 0.2)

    figures = members.run(1, seed=1, directory=tmp_path)

    assert "too little for a kill: consumed: 0" in figures["examples"]


def test_members_that_are_killed_lose_nothing(tmp_path: Path) -> None:
    figures = members.run(2, seed=1, directory=tmp_path)

    assert figures["broken"] == {}
    assert figures["sent"]


def test_files_that_have_passed_are_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "test_a.py", tmp_path / "test_b.py"
    (tmp_path / "sub").mkdir()
    other = tmp_path / "sub" / "test_c.py"
    good.write_text("def test_a(): ...")
    bad.write_text("import pytest\ndef test_b(): assert 0\ndef test_c(): pytest.skip()")
    other.write_text("")

    found = files.list_files([tmp_path], ignored=[tmp_path / "test_d.py"])

    def run() -> list[dict[str, int]]:
        return parts.run_parts(
            partial(files.run_file, marks=""),
            found,
            is_passed=files.is_passed,
            notes=tmp_path / "notes",
        )

    first = run()
    said = capsys.readouterr().out
    good.write_text("def test_a(): assert 0")
    bad.write_text("def test_b(): ...")
    second = run()

    assert found == [other, good, bad]
    assert first == [{}, {"passed": 1}, {"failed": 1, "skipped": 1}]
    assert "assert 0" in said
    assert second == [{}, {"passed": 1}, {"passed": 1}]


def test_file_that_pytest_cannot_read_has_failed(tmp_path: Path) -> None:
    broken = tmp_path / "test_broken.py"
    broken.write_text("import no_such_module")

    assert files.run_file(broken, marks="") == {"error": 1}
    assert files.run_file(tmp_path / "test_absent.py", marks="") == {"error": 1}


def test_run_of_the_least_steady_files_names_the_tests_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert all((gate.ROOT / file).exists() for file in steady.FILES)
    tests = tmp_path / "test_some.py"
    tests.write_text("def test_a(): ...\ndef test_b(): assert 0")
    absent = tmp_path / "test_absent.py"
    monkeypatch.setattr(steady, "WORKERS", 0)

    found = []
    for file in (tests, absent):
        monkeypatch.setattr(steady, "FILES", (str(file),))
        found.append(steady.run_once(1))

    assert found == [{"passed": 1, "failed": 1}, {"error": 1}]
    assert re.findall(r"^FAILED \S*/(\S+)", capsys.readouterr().out, re.M) == [
        "test_some.py::test_b"
    ]


def test_proof_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    notes, ran = tmp_path / "notes", list[int]()

    def run_part(part: tuple[int, int]) -> list[int]:
        ran.append(part[0])
        if ran == [0, 2, 4, 6]:
            raise KeyboardInterrupt
        return list(part)

    def run() -> list[list[int]]:
        cut = parts.ranges(7, 2)
        return parts.run_parts(run_part, cut, is_passed=lambda part: part[0] != 2, notes=notes)

    with pytest.raises(KeyboardInterrupt):
        run()
    found = run()

    assert found == [[0, 2], [2, 2], [4, 2], [6, 1]]
    # The part that failed ran again, too.
    assert ran == [0, 2, 4, 6, 2, 6]


def test_part_of_the_simulation_counts_its_seeds() -> None:
    failed, messages, reached = simulation.run_part((0, 1))

    assert failed == 0
    assert messages
    assert reached.keys() == set(SITUATIONS)
    assert reached["write_power_cut"]


def test_unknown_row_is_named() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "gate", "kils"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(gate.ROOT / "tests/support")},
        check=False,
    )

    assert run.returncode == 2
    assert "no row kils; there are kills," in run.stderr


def test_tables_of_both_languages_are_those_of_the_results() -> None:
    results = json.loads(gate.RESULTS.read_text())
    for language, name in enumerate(("gate.md", "gate.zh.md")):
        lines = gate.RESULTS.with_name(name).read_text().splitlines()[2:]
        assert [line.split(" | ")[0] for line in lines] == [f"| {row.name}" for row in ROWS]
        told = {line.split(" | ")[0][2:]: line.split(" | ")[3] for line in lines}
        assert told == {row.name: gate.tell(results.get(row.name), language) for row in ROWS}


def test_figure_of_a_part_and_of_a_failure_is_not_reached() -> None:
    result = {"figure": "3 kills", "passed": True, "share": 1}

    assert gate.tell(result, 0) == "3 kills"
    assert gate.tell(result | {"share": 0.11}, 0) == "not reached (11% of a run): 3 kills"
    assert gate.tell(result | {"passed": False}, 0) == "not reached: 3 kills"
    assert gate.tell(None, 1) == "未达到：尚未运行"


def test_row_whose_tests_were_all_skipped_has_no_figure() -> None:
    assert Row("r", ("", ""), "").figure("5 skipped in 0.1s") == ""
    assert Row("r", ("", ""), "").figure("4 passed, 1 skipped in 0.1s") == "4 passed, 1 skipped"


def test_simulation_that_never_comes_to_a_situation_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulation, "run_part", lambda part: (0, part[1], {"reset": 0, "cut": 1}))
    monkeypatch.setattr(simulation, "notes_of_code", lambda _: None)

    def run(seeds: int) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["simulation", "--seeds", str(seeds)])
        return simulation.main(), capsys.readouterr().out

    for seeds, code in ((999, 0), (1_000, 1)):
        ended, said = run(seeds)
        assert ended == code
        assert "never: reset\n" in said
        assert "; 1 of 2 situations met" in said
