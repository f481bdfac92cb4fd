"""The search for secrets: that it finds one in each form, and finds none in what servers say."""

from __future__ import annotations

import base64
from pathlib import Path
from urllib.parse import quote

import pytest

from gate.secrets import SECRETS, SOURCES, Said, run

SECRET = SECRETS["administrator"]


@pytest.mark.parametrize(
    "text",
    [
        f"key={SECRET};",
        base64.b64encode(SECRET.encode()).decode(),
        base64.b64encode(f"k:{SECRET} and more".encode()).decode(),
        base64.urlsafe_b64encode(f"key:{SECRET}".encode()).decode(),
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
        f"http://k:{quote(SECRET, safe='')}@host",
        repr({"secret_key": SECRET}),
    ],
    ids=["plain", "base64", "within-base64", "base64-for-urls", "hex", "HEX", "url", "repr"],
)
def test_secret_is_found_in_each_form(text: str) -> None:
    said = Said()
    said.add("here", text)
    said.add("there", text.replace("4", "5").swapcase())

    assert set(said.search({"key": SECRET})) == {"key in here"}


def test_secret_in_a_file_is_found_and_an_empty_file_is_no_text(tmp_path: Path) -> None:
    said = Said()
    (tmp_path / "empty").touch()
    said.add_files("nothing", tmp_path, without=("empty",))
    (tmp_path / "saved").write_bytes(b"\0" * 4_096 + SECRET.encode())
    said.add_files("files", tmp_path)

    assert set(said.texts) == {"files"}
    assert said.search({"key": SECRET, "other": SECRETS["broker"]}) == {"key in files": 1}


def test_leak_is_found_in_each_source() -> None:
    said = Said()
    said.add("log", "first")
    said.add("page", "a longer text than those before")

    found = said.with_leak(SECRET).search({"key": SECRET})

    assert found == {"key in log": 1, "key in page": 1}
    assert said.search({"key": SECRET}) == {}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_secret_is_said(tmp_path: Path) -> None:
    figures = run(tmp_path, with_spark=False)

    assert figures["found"] == {}
    assert figures["control"] == len(figures["sources"])
    assert set(SOURCES) - set(figures["sources"]) == {"Spark's logs and plans", "Spark's files"}
