"""Who gets in, and what other sites in the same browser cannot do."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message

from live_page import BASE, PASSWORD, READER_PASSWORD, Reader
from sparrowmq.dash import login as access_module
from sparrowmq.dash.login import (
    HELD_MAX,
    SESSIONS_MAX,
    Access,
    Session,
    check_host_name,
    make_password,
    read_form,
)
from sparrowmq.errors import ConfigError, UsageError

pytestmark = pytest.mark.slow


def other_browser(reader: Reader, **headers: str) -> httpx.AsyncClient:
    """Return a client of the same page that has not logged in."""
    return httpx.AsyncClient(transport=reader.http._transport, base_url=BASE, headers=headers)


async def test_nothing_is_shown_without_a_login(reader: Reader) -> None:
    async with other_browser(reader) as http:
        for path in ("/", "/groups/GID_x", "/?format=json&table=groups", "/events"):
            answer = await http.get(path)
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/login?next=%2F"), path
        live = await http.get("/", headers={"x-live": "1"})

    assert live.status_code == 401
    assert live.text == ""


async def test_a_form_of_a_session_that_has_ended_leads_to_the_login(reader: Reader) -> None:
    async with other_browser(reader) as http:
        for path, home in [
            ("/groups/GID_x/reset?to=30m", "/groups/GID_x/reset?to=30m"),
            ("/topics/%25RETRY%25cafe/delete", "/topics/%25RETRY%25cafe/delete"),
            ("/logout", "/"),
        ]:
            answer = await http.post(path, data={"token": "of an old session"})
            assert answer.status_code == 303, path
            assert httpx.URL(answer.headers["location"]).params["next"] == home


async def test_a_wrong_password_is_said_in_one_line_and_opens_nothing(reader: Reader) -> None:
    async with other_browser(reader) as http:
        answer = await http.post("/login", data={"password": PASSWORD[:-1] + "x"})
        after = await http.get("/")

    assert answer.status_code == 403
    assert "This is not the password." in answer.text
    assert after.status_code == 303


async def test_a_login_leads_where_one_was_going_and_never_elsewhere(reader: Reader) -> None:
    async with other_browser(reader) as http:
        for target, expected in [
            ("/groups/G?window=900", "/groups/G?window=900"),
            ("//evil.example.com/", "/"),
            ("/\\evil.example.com/", "/"),
            ("https://evil.example.com/", "/"),
            ("/\r\nSet-Cookie: a=b", "/"),
        ]:
            form = {"password": PASSWORD, "next": target}
            answer = await http.post("/login", data=form)
            assert (answer.status_code, answer.headers["location"]) == (303, expected)


async def test_the_language_of_a_link_is_that_of_the_login_it_leads_to(reader: Reader) -> None:
    async with other_browser(reader) as http:
        answer = await http.get("/topics?lang=zh", follow_redirects=True)
        again = await http.post("/login", data={"password": "wrong"})

    assert answer.url.path == "/login"
    assert '<html lang="zh-CN"' in answer.text
    assert "登录" in again.text


async def test_a_look_of_an_open_page_keeps_no_choice_of_its_url(reader: Reader) -> None:
    chosen = await reader.http.get("/topics?lang=zh")
    look = await reader.http.get("/topics?lang=en", headers={"x-live": "1"})

    assert "sparrowmq_lang=zh" in chosen.headers["set-cookie"]
    assert "set-cookie" not in look.headers


async def test_the_cookie_is_for_this_server_alone(reader: Reader) -> None:
    for scheme in ("http", "https"):
        async with other_browser(reader) as http:
            form = {"password": PASSWORD}
            answer = await http.post(BASE.replace("http", scheme) + "/login", data=form)

        cookie = answer.headers["set-cookie"].lower()
        assert cookie.startswith("sparrowmq_8181=")
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert ("secure" in cookie) is (scheme == "https")


@pytest.mark.parametrize(
    ("host", "is_served"),
    [
        ("127.0.0.1:8181", True),
        ("localhost:8181", True),
        ("[::1]:8181", True),
        ("192.168.1.7:8181", True),
        ("dash.example.com", True),
        ("DASH.example.com:443", True),
        ("evil.example.com:8181", False),
        ("127.0.0.1.evil.example.com", False),
        ("localhost.evil.example.com:8181", False),
        ("evil.dash.example.com", False),
        ("", False),
    ],
)
async def test_a_name_that_was_bound_to_this_machine_is_not_served(
    reader: Reader, host: str, *, is_served: bool
) -> None:
    answer = await reader.http.get("/", headers={"host": host})

    assert (200 if is_served else 421) == answer.status_code


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example.com"},
        {"origin": f"{BASE}.evil.example.com"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_a_form_of_another_site_is_refused(reader: Reader, headers: dict[str, str]) -> None:
    answer = await reader.http.post("/logout", data={"token": reader.token()}, headers=headers)

    assert answer.status_code == 403
    await reader.read("/")


async def test_a_form_without_the_sessions_token_is_refused(reader: Reader) -> None:
    for token in ("", "x" * 43, "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")):
        answer = await reader.http.post("/logout", data={"token": token})
        assert answer.status_code == 400
        assert "load the page again" in answer.text
        # Its page is not asked for again: the form would take the place of the refusal.
        assert 'data-live="no"' in answer.text
        assert "tries again" not in answer.text
    for path in ("/lab", "/new-topic", "/new-account", "/topics/T/send", "/groups/GID_x/reset"):
        answer = await reader.http.post(path, data={"token": ""})
        assert "load the page again" in answer.text, path
    await reader.read("/")


async def test_a_form_that_is_too_large_is_refused(reader: Reader) -> None:
    answer = await reader.http.post("/logout", content=b"a" * 65_537)

    assert answer.status_code == 400
    assert "larger than 65536 bytes" in answer.text


async def test_a_form_comes_in_pieces_and_has_its_empty_fields() -> None:
    pieces = iter((b"a=1&b=&c=%E9%BA", b"%BB+x", b""))

    async def receive() -> Message:
        piece = next(pieces)
        return {"type": "http.request", "body": piece, "more_body": piece != b""}

    form = await read_form(Request({"type": "http", "headers": []}, receive))

    assert form == {"a": "1", "b": "", "c": "麻 x"}


@pytest.mark.parametrize(
    "body", [b"a=\xff", b"&".join([b"a=1"] * 65)], ids=["other bytes", "many fields"]
)
async def test_what_is_no_form_is_refused(body: bytes) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    with pytest.raises(UsageError, match="the form cannot be read"):
        await read_form(Request({"type": "http", "headers": []}, receive))


async def test_a_form_that_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def receive_nothing() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(access_module, "FORM_TIMEOUT_S", 0)
    with pytest.raises(UsageError, match="did not come within"):
        await read_form(Request({"type": "http", "headers": []}, receive_nothing))


async def test_after_the_logout_the_cookie_opens_nothing(reader: Reader) -> None:
    cookies = dict(reader.http.cookies)

    answer = await reader.http.post("/logout", data={"token": reader.token()})

    assert answer.status_code == 303
    async with other_browser(reader) as http:
        http.cookies.update(cookies)
        assert (await http.get("/")).status_code == 303


async def test_every_answer_carries_the_policy(reader: Reader) -> None:
    for path in ("/", "/static/dash.js", "/nothing", "/login"):
        headers = (await reader.http.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy, path
        assert "unsafe" not in policy, path
        assert "frame-ancestors 'none'" in policy, path
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["cache-control"] == "no-store", path


async def test_other_methods_are_refused(reader: Reader) -> None:
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE"):
        assert (await reader.http.request(method, "/")).status_code == 405


async def test_pages_load_nothing_from_elsewhere_and_have_no_script_in_their_text(
    reader: Reader,
) -> None:
    text = await reader.read("/")

    assert "http://" not in text.replace("http://www.w3.org/", "")
    assert "https://" not in text
    assert " style=" not in text
    assert "<script>" not in text


def test_a_session_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 1_000
    monkeypatch.setattr(access_module, "monotonic_ms", lambda: now_ms)
    access = Access(PASSWORD, port=1)
    token = access.log_in(PASSWORD)
    assert token is not None

    now_ms += access_module.SESSION_MS
    assert access.find({access.cookie: token}) is not None
    now_ms += 1
    assert access.find({access.cookie: token}) is None


def test_the_oldest_session_ends_where_there_would_be_too_many() -> None:
    access = Access(PASSWORD, port=1)
    tokens = [access.log_in(PASSWORD) or "" for _ in range(SESSIONS_MAX + 1)]

    assert [access.find({access.cookie: token}) is not None for token in tokens] == [
        False,
        *[True] * SESSIONS_MAX,
    ]


@pytest.mark.parametrize("reader_password", [None, READER_PASSWORD])
def test_each_password_opens_what_it_is_for_and_no_other_text_opens_anything(
    reader_password: str | None,
) -> None:
    access = Access(PASSWORD, port=1, reader_password=reader_password)
    for text in (
        "",
        " ",
        PASSWORD[:-1],
        PASSWORD.upper(),
        f"{PASSWORD}x",
        "é",
        READER_PASSWORD[1:],
    ):
        assert access.log_in(text) is None, text

    def session_of(password: str) -> Session | None:
        return access.find({access.cookie: access.log_in(password) or ""})

    first, second = session_of(f" {PASSWORD}\n"), session_of(READER_PASSWORD)
    assert first is not None
    assert (first.may_write, first.is_reader) == (reader_password is not None, False)
    found = None if second is None else (second.may_write, second.is_reader)
    assert found == (None if reader_password is None else (False, True))


def test_a_secret_is_kept_for_the_newest_forms_and_never_taken_for_its_sign() -> None:
    session = Session("token", 0, may_write=True, is_reader=False)
    signs = [session.hold(f"secret {number}") for number in range(HELD_MAX + 1)]

    assert [session.find_held(sign) for sign in signs[1:]] == [
        f"secret {number}" for number in range(1, HELD_MAX + 1)
    ]
    assert session.find_held("as it was typed") == "as it was typed"
    with pytest.raises(UsageError, match="fill in the form again"):
        session.find_held(signs[0])
    other = Session("token", 0, may_write=True, is_reader=False)
    with pytest.raises(UsageError, match="fill in the form again"):
        other.find_held(signs[1])
    assert not any(f"secret {number}" in sign for number, sign in enumerate(signs))


def test_passwords_differ_and_have_no_sign_that_looks_like_another() -> None:
    passwords = {make_password() for _ in range(100)}

    assert len(passwords) == 100
    assert not set("".join(passwords)) & set("01ilo")
    assert {len(password) for password in passwords} == {19}


@pytest.mark.parametrize("name", ["", "http://dash", "a:80", "a b", "me@dash"])
def test_what_is_no_host_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--allow-host"):
        check_host_name(name)
