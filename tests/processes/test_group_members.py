from __future__ import annotations

from pathlib import Path

import pytest

from sparrowmq.processes.child_processes import ChildProcesses
from sparrowmq.processes.group_members import Members, NotReached
from waiting import wait_until


@pytest.mark.slow
def test_what_does_not_happen_is_told_with_what_processes_said_of_themselves(
    tmp_path: Path,
) -> None:
    with ChildProcesses(tmp_path) as processes:
        members = Members(processes, tmp_path, [])
        mute = processes.start("mute", ["-c", "input()"], has_input=True)
        loud = processes.start("loud", ["-uc", "print('out of here'); input()"], has_input=True)
        members.required += [mute, loud]
        wait_until("the output", lambda: loud.output_tail() == "out of here")

        with pytest.raises(NotReached) as caught:
            members.wait("owner", lambda: False, limit_ms=0)

    assert str(caught.value) == "no owner within 0 s; loud said: out of here"
