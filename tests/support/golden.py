"""Golden vectors for tests: answers of Apache RocketMQ's own classes (`tests/golden/README.md`).

A test gets them in one of three ways:

- `@each_case("remoting.jsonl", "frame-")` on a function that takes `case`, a dict: one test checks
  every case whose `id` begins with one of the prefixes, and lists the ids that fail with their
  differences;
- `@pytest.mark.golden_files("store-*.tar.gz")` on a test that takes `golden_file`, a `Path`: one
  test a file;
- the fixture `golden`, a `GoldenDirectory`, and `check_cases` for cases of the test's own choice.
"""

from __future__ import annotations

import functools
import gzip
import json
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Case = dict[str, Any]
# A rule that is broken everywhere breaks thousands of cases: these many are explained.
DIFFERENCES_SHOWN_MAX = 10


@dataclass(frozen=True)
class GoldenDirectory:
    """A directory of golden vectors. Every method skips the test if the file is not there."""

    directory: Path

    def cases(self, name: str, *prefixes: str) -> list[Case]:
        """Return the cases of a .jsonl file whose id begins with one of the prefixes, in order."""
        chosen = prefixes or ("",)
        cases = [
            case for case in _parse_lines(self.path(name)) if str(case["id"]).startswith(chosen)
        ]
        if not cases:
            pytest.skip(f"{name} in {self.directory} has no case {'*, '.join(chosen)}*")
        return cases

    def json(self, name: str) -> Any:
        """Return the content of a .json file."""
        return json.loads(_read(self.path(name)))

    def path(self, name: str) -> Path:
        """Return the path of a file, which for .json and .jsonl may end in .gz."""
        for path in (self.directory / name, self.directory / f"{name}.gz"):
            if path.is_file():
                return path
        pytest.skip(f"no {name} in {self.directory}")


def each_case(
    name: str, *prefixes: str
) -> Callable[[Callable[[Case], None]], Callable[[GoldenDirectory], None]]:
    """Make one test of a check of one case."""

    def make_test(check: Callable[[Case], None]) -> Callable[[GoldenDirectory], None]:
        # Not functools.wraps: pytest must see the parameter `golden`, not `case`.
        def test(golden: GoldenDirectory) -> None:
            check_cases(golden.cases(name, *prefixes), check)

        test.__name__, test.__qualname__ = check.__name__, check.__qualname__
        test.__module__, test.__doc__ = check.__module__, check.__doc__
        return test

    return make_test


def check_cases(cases: Sequence[Case], check: Callable[[Case], None]) -> None:
    """Check every case; fail with the ids of those that differ and the first differences."""
    found = {str(case["id"]): _difference(check, case) for case in cases}
    differences = {case_id: text for case_id, text in found.items() if text is not None}
    if not differences:
        return
    shown = list(differences.items())[:DIFFERENCES_SHOWN_MAX]
    pytest.fail(
        "\n".join(
            [
                f"{len(differences)} of {len(cases)} cases differ: {' '.join(differences)}",
                *(f"--- {case_id}\n{text}" for case_id, text in shown),
            ]
        ),
        pytrace=False,
    )


def _difference(check: Callable[[Case], None], case: Case) -> str | None:
    try:
        check(case)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = "".join(traceback.format_exception_only(error)).rstrip()
        return f"{last.filename}:{last.lineno}: {text}"
    return None


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


@functools.cache
def _parse_lines(path: Path) -> list[Case]:
    # Split at "\n" alone: texts may hold U+2028 and others that splitlines() would split at.
    return [json.loads(line) for line in _read(path).split(b"\n") if line.strip()]
