"""What importing the package gives, and what it costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import sparrowmq


def test_every_name_is_what_type_checkers_see() -> None:
    assert sparrowmq.__file__ is not None
    tree = ast.parse(Path(sparrowmq.__file__).read_text())
    seen = {
        alias.name: getattr(import_module(node.module or ""), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sparrowmq.")
        for alias in node.names
    }

    assert sorted(seen) == sparrowmq.__all__
    assert seen == {name: getattr(sparrowmq, name) for name in sparrowmq.__all__}
    assert set(sparrowmq.__all__) <= set(dir(sparrowmq))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'sparrowmq' has no attribute 'Nothing'"):
        _ = sparrowmq.Nothing  # type: ignore[attr-defined]


def test_import_of_another_clients_name_says_ours() -> None:
    with pytest.raises(ImportError, match="did you mean SendFailed"):
        from sparrowmq import SendFailedError  # type: ignore[attr-defined] # noqa: F401
    with pytest.raises(ImportError, match="did you mean PushConsumer or PollConsumer"):
        from sparrowmq import Consumer  # type: ignore[attr-defined]  # noqa: F401


def test_names_of_other_clients_lead_to_ours() -> None:
    ours = {
        name
        for text in sparrowmq._NAMES_ELSEWHERE.values()
        for name in re.findall(r"[A-Z]\w+", text)
    }

    assert ours <= set(sparrowmq.__all__)
    assert not sparrowmq._NAMES_ELSEWHERE.keys() & set(sparrowmq.__all__)


def test_import_loads_no_room() -> None:
    code = "import sys, sparrowmq; print([m for m in sys.modules if m.startswith('sparrowmq')])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert found.stdout.strip() == "['sparrowmq']"


def test_clients_load_no_tools() -> None:
    tools = ("sparrowmq.doctor", "sparrowmq.client.operations.administer")
    code = "import sys; from sparrowmq import Producer, PushConsumer; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert [name for name in found.stdout.split() if name.startswith(tools)] == []


def test_synchronous_clients_load_no_asyncio() -> None:
    code = (
        "import sys; from sparrowmq import Producer, PushConsumer; print('asyncio' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert found.stdout == "False\n"
