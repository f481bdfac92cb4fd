"""Plant secrets wherever users give them, and search all that is said: `python -m gate.secrets`.

A name server, brokers, the live page and the exporter run with accounts, TLS and debug logging.
Clients, commands, a browser's requests, gRPC calls and Spark use them, rightly and wrongly. What
each of these prints, logs, answers and writes is searched for each secret, in each of its `forms`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import quote, quote_plus, urlencode
from urllib.request import HTTPCookieProcessor, build_opener

import grpc
from kombu.connection import Connection
from kombu.exceptions import KombuError
from typer.testing import CliRunner

from certificates import Certificates
from grpc_caller import GrpcCaller
from sparrowmq import Admin, AsyncProducer, Message, PollConsumer, Producer, SimpleConsumer
from sparrowmq.adapters import kombu as _transport  # noqa: F401
from sparrowmq.adapters.faststream import RocketBroker
from sparrowmq.calling.tls import client_context
from sparrowmq.cli.contexts import Context
from sparrowmq.cli.main import COMMANDS, build_app
from sparrowmq.client.config import ClientConfig
from sparrowmq.client.operations.accounts import AccountChange
from sparrowmq.errors import SparrowError
from sparrowmq.hosting.settings import SETTINGS
from sparrowmq.hosting.settings_file import read_settings
from sparrowmq.protocol.bodies import PlainAccessConfig
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import UpdateAccessConfigRequestHeader
from sparrowmq.protocol.signatures import Credentials, sign_request
from sparrowmq.serving.access_control import parse_access
from sparrowmq.serving.access_file import AccessFile, read_credentials
from sparrowmq.spark.options import parse_options
from waiting import wait_until

ROOT = Path(__file__).parents[3]
SPARK_JOB = ROOT / "tests/spark/access_job.py"
# All that `sparrowmq` logs, also below what an option can ask for.
PROGRAM = (
    "import logging, sys; from sparrowmq.cli.main import main; "
    "logging.getLogger('sparrowmq').setLevel(logging.DEBUG); sys.exit(main())"
)
SECRETS = {
    name: f"planted/{name}+4711"
    for name in (
        *("administrator", "service", "broker", "new-account", "changed-account", "form-account"),
        *("session-token", "wrong-secret", "variable", "url-password", "misplaced", "pass-phrase"),
    )
}
RULES = f"""\
accounts:
  - {{accessKey: administrator, secretKey: {SECRETS["administrator"]}, admin: true}}
  - {{accessKey: broker-account, secretKey: {SECRETS["broker"]}, admin: true}}
  - accessKey: service-account
    secretKey: {SECRETS["service"]}
    topicPerms: [orders=PUB|SUB]
    groupPerms: [GID_orders=SUB, GID_spark=SUB]
"""
# Of every process here.
VARIABLES = {
    "SPARROWMQ_ACCESS_KEY": "administrator",
    "SPARROWMQ_SECRET_KEY": SECRETS["administrator"],
    "A_VARIABLE": SECRETS["variable"],
    "LANGUAGE": "en",
}
PASSWORD = re.compile(rb"(password .*: )([a-z0-9]{4}(?:-[a-z0-9]{4}){3})")
SHOWING = (
    *(("ls",), ("topic", "ls"), ("topic", "show", "orders"), ("group", "ls"), ("acl", "ls")),
    *(("group", "show", "GID_orders"), ("broker", "ls"), ("broker", "show", "broker-a")),
    *(("broker", "config", "broker-a"), ("rebalance", "doctor"), ("dlq", "ls")),
    *(("rebalance", "show", "GID_orders"), ("rebalance", "doctor", "GID_orders")),
)
# Each must have said something.
SOURCES = (
    *("servers's output", "broker's output", "page's output", "exporter's output", "saved files"),
    *("arguments of processes", "clients' logs", "errors", "errors of files and options", "reprs"),
    *("commands", "pages", "metrics", "health", "gRPC", "Spark's logs and plans", "Spark's files"),
)
TOPIC, GROUP = "orders", "GID_orders"
PAGES = (
    *("/", "/topics", f"/topics/{TOPIC}", "/messages", f"/messages?topic={TOPIC}", "/brokers"),
    *("/brokers/broker-a", "/doctor", "/simulator", "/lab", "/dead-letters", "/accounts"),
    *("/new-account", f"/groups/{GROUP}", f"/groups/{GROUP}/reset", "/nothing", "/login"),
)


def forms(secret: str) -> set[bytes]:
    """Return a secret as it may stand in a text: plain, in hexadecimal, base64, a URL, a `repr`."""
    data = secret.encode()
    found = {
        data,
        data.hex().encode(),
        quote(secret, safe="").encode(),
        quote_plus(secret).encode(),
    }
    found |= {data.hex().upper().encode(), json.dumps(secret).replace("/", "\\/")[1:-1].encode()}
    for before in range(3):
        # Where the secret begins within three bytes; the ends depend on what stands beside it.
        text = base64.b64encode(b"\0" * before + data)
        inner = text[(0, 2, 3)[before] : -4]
        found |= {inner, inner.translate(bytes.maketrans(b"+/", b"-_"))}
    return found


class Said:
    """What was printed, logged, answered and written, by its source."""

    def __init__(self) -> None:
        self.texts: dict[str, list[bytes]] = {}

    def add(self, source: str, text: str | bytes) -> None:
        """Note a text; an empty one counts for nothing."""
        data = text.encode() if isinstance(text, str) else text
        if data.strip():
            self.texts.setdefault(source, []).append(data)

    def add_error(self, source: str, error: BaseException) -> None:
        """Note all that a program may print of an error."""
        lines = traceback.format_exception(error)
        # Lines of source code are those of this file.
        shown = [line for line in lines if not line.lstrip().startswith("File ")]
        self.add(source, "\n".join([str(error), repr(error), repr(error.args), *shown]))

    def add_files(self, source: str, directory: Path, *, without: tuple[str, ...] = ()) -> None:
        """Note the files below a directory, and their names."""
        for path in sorted(directory.rglob("*")):
            if path.is_file() and path.name not in without:
                # A store's files are as long as they may become.
                self.add(source, str(path) + "\n")
                self.add(source, re.sub(rb"\0{64,}", b"\0", path.read_bytes()))

    def with_leak(self, secret: str) -> Said:
        """Return a copy in which the last text of each source holds a secret within base64."""
        leaky = Said()
        leak = base64.b64encode(f"key={secret};".encode())
        for source, texts in self.texts.items():
            leaky.texts[source] = [*texts[:-1], texts[-1][:9] + leak + texts[-1][9:]]
        return leaky

    def search(self, secrets: Mapping[str, str]) -> Counter[str]:
        """Return how often each secret is found, by its name and source."""
        found: Counter[str] = Counter()
        for name, secret in secrets.items():
            for form in forms(secret):
                for source, texts in self.texts.items():
                    hits = sum(form in text for text in texts)
                    if hits:
                        found[f"{name} in {source}"] += hits
        return found


def start(said: Said, held: ExitStack, name: str, *arguments: object) -> dict[str, str]:
    """Start a command; return what its first line names. All that it says is noted at its end."""
    log: IO[bytes] = held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=log
    )

    def end() -> None:
        process.terminate()
        try:
            rest, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            rest, _ = process.communicate()
        said.add(f"{name}'s output", line + rest + _without_passwords(_read(log)))

    held.callback(end)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith(b"ready"):
        raise RuntimeError(f"{name} did not start: {_read(log).decode()}")
    if name == "page":
        wait_until("its passwords", lambda: len(PASSWORD.findall(_read(log))) == 2)
    said.add("arguments of processes", Path(f"/proc/{process.pid}/cmdline").read_bytes())
    found = dict(re.findall(r"(\w+)=(\S+)", line.decode()))
    for number, password in enumerate(PASSWORD.findall(_read(log))):
        found[f"password {number}"] = password[1].decode()
    return found


def _read(log: IO[bytes]) -> bytes:
    # Without moving the place where the process writes.
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0)


def _without_passwords(log: bytes) -> bytes:
    """Leave out where the page says its passwords, once, to who starts it."""
    return PASSWORD.sub(rb"\1", log)


def _keys(address: str, access_key: str, secret: str, /, **more: object) -> dict[str, Any]:
    return {
        "name_server": address,
        "access_key": access_key,
        "secret_key": SECRETS[secret],
        **more,
    }


def use_clients(said: Said, address: str, ca: Path) -> None:
    """Send, consume and administer, with right and wrong keys, by both faces and all clients."""
    right = _keys(address, "service-account", "service")
    owner = _keys(address, "administrator", "administrator")
    wrong = _keys(address, "service-account", "wrong-secret")
    token = _keys(address, "service-account", "service", security_token=SECRETS["session-token"])
    tls = client_context(ca_file=ca)

    def expect(kind: str, act: Callable[[], object]) -> None:
        try:
            act()
        except (SparrowError, TypeError, ValueError, OSError) as error:
            said.add_error("errors", error)
        else:
            raise AssertionError(f"{kind} raised nothing")

    with Admin(**owner, tls=tls) as admin:
        admin.create_topic(TOPIC, 2)
        admin.create_topic("secret", 2)
        admin.put_account("changed-account", secret_key=SECRETS["changed-account"], is_admin=False)
        said.add("reprs", f"{admin!r} {admin.list_accounts()!r}")
    with Producer("GID_p", **right, tls=tls) as producer:
        said.add("reprs", repr(producer))
        for number in range(20):
            producer.send(Message(TOPIC, b"%d" % number))
        expect("another topic", lambda: producer.send(Message("secret", b"x")))
    with PollConsumer(GROUP, [TOPIC], **right) as consumer:
        said.add("reprs", repr(consumer))
        wait_until("messages", lambda: consumer.poll(timeout_ms=500))
    with SimpleConsumer(GROUP, [TOPIC], **right) as simple:
        said.add("reprs", repr(simple))
    for name, keys in (("wrong", wrong), ("token", token)):
        with Producer("GID_w", **keys, retry_times=0) as producer:
            with contextlib.suppress(SparrowError):
                producer.send(Message(TOPIC, name.encode()))
            said.add("reprs", repr(producer))
    with Producer("GID_w", **wrong, retry_times=0) as producer:
        expect("a wrong secret", lambda: producer.send(Message(TOPIC, b"x")))
    with Admin(**right) as admin:
        expect("no administrator", lambda: admin.create_topic("t", 1))
        expect("an account", lambda: admin.put_account("a", secret_key=SECRETS["new-account"]))
    misplaced = SECRETS["misplaced"]
    expect("no key", lambda: Producer("GID_p", name_server=address, secret_key=misplaced))
    for name in ("secret", "tls", "security-token"):
        given = _keys(address, "service-account", "service", **{name: misplaced})
        expect(name, partial(Producer, "GID_p", **given))
    given = _keys(address, "service-account", "service", secret_key=misplaced.encode())
    expect("a secret in bytes", partial(Producer, "GID_p", **given))
    expect("an address", lambda: Admin(name_server=f"key:{SECRETS['url-password']}@{address}"))

    async def send() -> None:
        async with AsyncProducer("GID_a", **right) as producer:
            await producer.send(Message(TOPIC, b"x"))
            said.add("reprs", repr(producer))
        async with AsyncProducer("GID_a", **wrong, retry_times=0) as producer:
            try:
                await producer.send(Message(TOPIC, b"x"))
            except SparrowError as error:
                said.add_error("errors", error)

    asyncio.run(send(), debug=True)


def show_values(said: Said, directory: Path) -> None:
    """Note the `repr` of each object that holds a secret, and errors of files and options."""
    secret, token = SECRETS["administrator"], SECRETS["session-token"]
    keys = Credentials(access_key="k", secret_key=secret, security_token=token)
    header = UpdateAccessConfigRequestHeader(access_key="k", secret_key=secret)
    fields = sign_request({"accessKey": "k", "secretKey": secret}, None, credentials=keys)
    url = f"rocketmq://k:{quote(SECRETS['url-password'], safe='')}@127.0.0.1:1"
    rules = directory / "plain_acl.yml"
    for each in (
        *(keys, header, PlainAccessConfig(access_key="k", secret_key=secret)),
        *(
            AccountChange(access_key="k", secret_key=secret),
            ClientConfig(access_key="k", secret_key=secret, security_token=token),
        ),
        *(RemotingCommand(code=50, ext_fields=fields), RemotingCommand(code=50, header=header)),
        *(parse_access({"accounts": [{"accessKey": "k" * 7, "secretKey": secret}]}),),
        *(AccessFile(rules, own=keys).control, read_credentials(directory / "tools.yml")),
        *(Connection(url), Connection(url).as_uri()),
        *(
            RocketBroker("a:1", access_key="k", secret_key=secret, security_token=token),
            Context(access_key="k", secret_key_file="f"),
        ),
        parse_options(
            {"nameServer": "a:1", "topic": "t", "accessKey": "k", "secretKey": secret},
            scope="batch",
        ),
    ):
        said.add("reprs", repr(each))

    def note(act: Callable[[], object]) -> None:
        try:
            said.add("reprs", repr(act()))
        except (SparrowError, KombuError, ValueError, OSError) as error:
            said.add_error("errors of files and options", error)

    misplaced = SECRETS["misplaced"]
    path = directory / "wrong"
    for text in (
        f"secretKey: {misplaced}",
        f"accounts:\n  - accessKey: abcdefg\n    secretKey:{misplaced}\n    admin: true",
        f"accounts:\n  - {{accessKey: abcdefg, secretKey:{misplaced}}}",
        f"accounts:\n  - {{accessKey: abcdefg, secretKey: *{misplaced}}}",
        f"accounts:\n  - {{accessKey: abcdefg, secretKey: [{misplaced}]}}",
        f"accounts:\n  - {{accessKey: abcdefg, secretKey: '{misplaced}, admin: true}}",
        f"accounts:\n  - {{accessKey: abcdefg, secretKey: !{misplaced}, admin: yes}}",
        f"accounts: {misplaced}",
    ):
        path.write_text(text)
        note(lambda: AccessFile(path, own=None))
        note(lambda: read_settings(path, SETTINGS))
    for text in (f"secretKey = {misplaced}", f"secretKey {misplaced}", f"secretKey:{misplaced}"):
        path.write_text(text)
        note(lambda: read_settings(path, SETTINGS))
    connection = {"nameServer": "a:1", "topic": "t"}
    for name in ("secretKey", "securityToken", "secret_key", "sasl.jaas.config", "secretkeys"):
        options = {**connection, name: misplaced}
        note(partial(parse_options, options, scope="batch"))
    with contextlib.closing(Connection(url)) as connection_:
        note(lambda: connection_.ensure_connection(max_retries=1))


def run_commands(said: Said, address: str, directory: Path) -> None:
    """Run commands: their help, and what they answer with the keys that variables hold."""
    secret = directory / "new-account"
    secret.write_text(SECRETS["new-account"])
    at = ("--nameserver", address, "--timeout", "10")
    put = ("acl", "put", "new-account", "--secret-key-file", str(secret), "--topics", "SUB")
    commands: list[tuple[str, ...]] = [
        *((name, "--help") for name in COMMANDS),
        *((*each, *more, *at) for each in SHOWING for more in ((), ("--json",))),
        *((*put, *at), (*put, "--yes", *at), ("send", TOPIC, "x", *at), ("check", *at)),
        ("snapshot", "--out", str(directory / "snapshot"), *at),
        ("context", "set", "here", *at[:2], "--access-key", "k", "--secret-key-file", str(secret)),
        ("context", "set", "b", *at[:2], "--access-key", "k", "--secret-key-env", "A_VARIABLE"),
        *(("context", "ls"), ("context", "ls", "--json"), ("ls", "--context", "here")),
        *(("ls", "--context", "b"), ("acl", "delete", "new-acount", *at)),
        ("acl", "put", "x", "--secret-key-file", str(directory), *at),
        *(("up", "--config", str(directory / "tools.yml")), ("ls", "--nameserver", "nowhere:x")),
        ("up", "--acl", str(directory / "tools.yml"), "--data", str(directory / "d")),
        ("up", "--tls-cert", str(directory / "encrypted.pem"), "--data", str(directory / "d")),
    ]
    for words in commands:
        ended = CliRunner().invoke(build_app(), list(words))
        said.add("commands", f"{ended.stdout}\n{ended.stderr}")
        if ended.exception is not None:
            said.add_error("commands", ended.exception)


def read_pages(said: Said, page: Mapping[str, str]) -> None:
    """Read every page in both languages and as files, log in wrongly, and send a form twice."""
    base = page["dash"].rstrip("/")
    browser = build_opener(HTTPCookieProcessor())

    def ask(path: str, language: str = "en", form: Mapping[str, str] | None = None) -> str:
        data = None if form is None else urlencode(form).encode()
        browser.addheaders = [("Accept-Language", language)]
        try:
            with browser.open(base + path, data=data, timeout=60) as answer:
                text = f"{answer.headers}\n{answer.read().decode()}"
        except HTTPError as error:
            text = f"{error.headers}\n{error.read().decode()}"
        said.add("pages", text)
        return text

    ask("/login", form={"password": SECRETS["wrong-secret"], "next": "/"})
    ask("/login", form={"password": page["password 0"], "next": "/topics"})
    for language in ("en", "zh"):
        for path in PAGES:
            ask(path, language)
            ask(f"{path}{'&' if '?' in path else '?'}format=json", language)
    token = re.findall(r'name="token" value="([^"]+)"', ask("/new-account"))[0]
    form = {"token": token, "account": "form-account", "secret": SECRETS["form-account"]}
    form |= {"admin": "no", "from": "", "topics": "SUB", "groups": "SUB"}
    form |= {"topic_perms": "", "group_perms": ""}
    preview = ask("/new-account", form=form)
    confirm = preview.rpartition("<form")[2]
    again = dict(re.findall(r'name="(\w+)" value="([^"]*)"', confirm))
    again |= {n: v.strip() for n, v in re.findall(r'name="(\w+)" hidden>([^<]*)<', confirm)}
    ask("/new-account", form=form | again)
    if "form-account" not in ask("/accounts"):
        raise AssertionError("the form made no account")
    ask("/new-account", form={**form, "topics": "NONSENSE", "account": "x"})


def call_grpc(said: Said, address: str, ca: Path) -> None:
    """Call the gRPC service with right and wrong keys and damaged requests."""
    for keys in (
        ("service-account", SECRETS["service"]),
        ("service-account", SECRETS["wrong-secret"]),
        ("nobody", SECRETS["misplaced"]),
        None,
    ):
        with GrpcCaller(address, keys=keys, ca=ca) as caller:
            acts: list[Callable[[], object]] = [
                partial(caller.call_by_bytes, "SendMessage", b"\xff"),
                *(partial(caller.send, topic, b"x") for topic in (TOPIC, "secret", "a b")),
                *(partial(caller.receive, topic, GROUP, wait_s=1) for topic in (TOPIC, "secret")),
            ]
            for act in acts:
                try:
                    said.add("gRPC", repr(act()))
                except (grpc.RpcError, ValueError) as error:
                    said.add_error("gRPC", error)


def run_spark(said: Said, address: str, directory: Path) -> None:
    """Let Spark take the steps of a user, with right, wrong and missing keys."""
    out = directory / "spark"
    (out / "events").mkdir(parents=True)
    accounts = ("service-account", SECRETS["service"], "service-account", SECRETS["wrong-secret"])
    ended = subprocess.run(
        [sys.executable, SPARK_JOB, address, out, *accounts, "", ""],
        env={**os.environ, "SPARK_LOCAL_DIRS": str(out / "local")},
        capture_output=True,
        timeout=900,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(ended.stderr[-4_000:].decode())
    said.add("Spark's logs and plans", ended.stdout + ended.stderr)
    said.add_files("Spark's files", out)


def run(directory: Path, *, with_spark: bool = True) -> dict[str, Any]:
    """Plant, use everything, search; return the figures."""
    said, secrets = Said(), dict(SECRETS)
    certificates = Certificates(directory)
    server = certificates.server
    encrypted = directory / "encrypted.pem"
    subprocess.run(
        ["openssl", "ec", "-in", server.key, "-aes128", "-passout", "env:PASS", "-out", encrypted],
        env={**os.environ, "PASS": secrets["pass-phrase"]},
        check=True,
        capture_output=True,
    )
    secrets["TLS key"] = server.key.read_text().splitlines()[1]
    rules, tools = directory / "plain_acl.yml", directory / "tools.yml"
    rules.write_text(RULES)
    tools.write_text(f"secretKey: {secrets['broker']}\naccessKey: broker-account\n")
    records = io.StringIO()
    with ExitStack() as held:
        held.enter_context(_variables(VARIABLES | {"XDG_CONFIG_HOME": str(directory / "config")}))
        held.enter_context(_logging_to(records))
        ports = ("--nameserver-port", 0, "--broker-port", 0, "--grpc-port", 0, "--health-port", 0)
        tls = ("--tls-cert", server.path, "--tls-key", server.key, "--tls-mode", "permissive")
        disk = ("--disk-full-percent", 100, "--disk-force-percent", 100)
        up = start(
            *(said, held, "servers", "up", *ports, *tls, *disk, "--verbose"),
            *("--acl", rules, "--data", directory / "data"),
        )
        address = up["nameserver"]
        start(
            *(said, held, "broker", "broker", "--nameserver", address, "--port", 0, *disk),
            *("--broker-name", "broker-b", *tls, "--acl", rules, "--acl-credentials", tools),
            *("--verbose", "--data", directory / "data-b"),
        )
        at = ("--nameserver", address, "--port", 0)
        page = start(
            *(said, held, "page", "dash", *at, "--data", directory / "dash", "--allow-writes"),
        )
        metrics = start(said, held, "exporter", "metrics", *at)
        secrets |= {name: text for name, text in page.items() if name.startswith("password")}
        use_clients(said, address, certificates.ca.path)
        show_values(said, directory)
        call_grpc(said, up["grpc"], certificates.ca.path)
        run_commands(said, address, directory)
        read_pages(said, page)
        browser = build_opener()
        for source, url in (
            ("metrics", metrics["metrics"]),
            ("health", f"http://{up['health']}/health"),
            ("health", f"http://{up['health']}/ready"),
        ):
            with browser.open(url, timeout=60) as answer:
                said.add(source, f"{answer.headers}\n{answer.read().decode()}")
        if with_spark:
            run_spark(said, address, directory)
    said.add("clients' logs", records.getvalue())
    for name in ("data", "data-b", "dash", "snapshot", "config"):
        said.add_files("saved files", directory / name)
    found = said.search(secrets)
    # What would be found if each source showed a secret.
    control = said.with_leak("another-secret").search({"control": "another-secret"})
    return {
        "secrets": len(secrets),
        "texts": sum(map(len, said.texts.values())),
        "sources": sorted(said.texts),
        "bytes": sum(len(text) for texts in said.texts.values() for text in texts),
        "found": found,
        "control": len(control),
    }


@contextlib.contextmanager
def _variables(given: Mapping[str, str]) -> Generator[None]:
    """Give these variables to this process and those that it starts."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    yield
    for name, text in before.items():
        if text is None:
            del os.environ[name]
        else:
            os.environ[name] = text


@contextlib.contextmanager
def _logging_to(stream: io.StringIO) -> Generator[None]:
    """Log all of this process."""
    root, handler = logging.getLogger(), logging.StreamHandler(stream)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield
    root.setLevel(level)
    root.removeHandler(handler)


def main() -> int:
    """Return 1 if a secret was found."""
    parser = argparse.ArgumentParser(prog="python -m gate.secrets")
    parser.add_argument("--without-spark", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = run(Path(directory), with_spark=not options.without_spark)
    print(json.dumps(figures))
    expected = len(SOURCES) - (2 if options.without_spark else 0)
    if len(figures["sources"]) < expected or figures["control"] < expected:
        print(f"fewer than {expected} sources were collected and searched", file=sys.stderr)
        return 1
    return 1 if figures["found"] else 0


if __name__ == "__main__":
    sys.exit(main())
