from __future__ import annotations

import logging

from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.signatures import ACCESS_KEY
from sparrowmq.serving.access_control import AccessControl
from sparrowmq.serving.server_log import OneLineFormatter


def line_of(text: str, *, error: Exception | None = None) -> str:
    info = None if error is None else (type(error), error, None)
    record = logging.LogRecord("sparrowmq", logging.INFO, "", 1, "%s", (text,), info)
    return OneLineFormatter("%(levelname)s %(message)s").format(record)


def test_what_a_stranger_calls_itself_begins_no_line_and_controls_no_terminal() -> None:
    key = "x\n2026-01-01 INFO all is well\x1b[2J"
    request = RemotingCommand(code=RequestCode.GET_BROKER_CONFIG, ext_fields={ACCESS_KEY: key})
    reason = AccessControl({}, lambda _: None).find_refusal(request, "10.0.0.1:1") or ""

    assert key in reason
    assert line_of(reason) == (r"INFO No acl config for x\n2026-01-01 INFO all is well\x1b[2J")


def test_a_traceback_keeps_its_lines() -> None:
    assert line_of("a failure", error=ValueError("one")) == "INFO a failure\nValueError: one"
