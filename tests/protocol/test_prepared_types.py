"""Types of bodies and headers are worked out as they are imported, not by the thread that reads."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import msgspec
from msgspec import Struct, ValidationError, convert, _utils
from sparrowmq.protocol import bodies, headers

types = [t for m in (bodies, headers) for t in vars(m).values()
         if isinstance(t, type) and issubclass(t, Struct) and t is not Struct]
late = []
evaluate = _utils._forward_ref
def noting(text):
    late.append(text)
    return evaluate(text)
_utils._forward_ref = noting
for each in types:
    try:
        convert({}, each, strict=False)
    except ValidationError:
        pass
class Late(Struct):
    field: "int"
convert({"field": 1}, Late)
print(len(types) > 100, late)
"""


def test_no_annotation_is_evaluated_once_the_types_are_imported() -> None:
    """Two threads that do so at the same time end the process (msgspec 0.22)."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )

    # A type that nobody prepared is noticed.
    assert (ended.stdout, ended.stderr) == ("True ['int']\n", "")
