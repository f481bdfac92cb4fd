"""Apache's own integration tests, from Maven Central, on brokers of ours and on Apache's.

Theirs start brokers in the JVM of the tests; `java/suite/VERSION/BaseConf.java` stands before that
class on the class path and takes the addresses of a cluster that runs. A test that reaches into a
server's classes cannot run so. All others run, each class once, in one JVM.
"""

from __future__ import annotations

import os
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from certificates import Certificates

# Nine minutes for 4.9.7: members of a group wait for each other, and delays are waited for.
pytestmark = [pytest.mark.interop, pytest.mark.timeout(3_600)]


class Counts(NamedTuple):
    """How many tests run, and how many classes of tests do not."""

    tests: int
    classes_left_out: int


# 5.5.0 starts three; 4.9.7 takes as many as there are.
BROKERS = {"4.9.7": ("broker-a", "broker-b"), "5.5.0": ("broker-a", "broker-b", "broker-c")}
COUNTS = {"4.9.7": Counts(108, 2), "5.5.0": Counts(105, 39)}
# Tests of Apache's own classes, which need no broker.
WITHOUT_BROKER = {"lmq/TestBenchLmqStore", "schema/SchemaTest"}
# What stores no message, on Apache's brokers neither: these are about what is refused before, by
# the client or the broker, or about members alone.
STORE_NOTHING = {
    "AsyncSendExceptionIT.testQueueIdBigThanQueueNum",
    "AsyncSendExceptionIT.testSelectorThrowsException",
    "AsyncSendExceptionIT.testSendCallBackNull",
    "AsyncSendExceptionIT.testSendMQNull",
    "AsyncSendExceptionIT.testSendSelectorNull",
    "ChinaPropIT.testSend20kChinaPropMsg",
    "MessageExceptionIT.testSend128kMsg",
    "MessageExceptionIT.testSynSendBlankTopicMessage",
    "MessageExceptionIT.testSynSendNullBodyMessage",
    "MessageExceptionIT.testSynSendNullMessage",
    "MessageExceptionIT.testSynSendNullTopicMessage",
    "MessageExceptionIT.testSynSendOutOfSizeBodyMessage",
    "MessageExceptionIT.testSynSendZeroSizeBodyMessage",
    "NormalMsgDynamicBalanceIT.testMessageQueueListener",
    "OneWaySendExceptionIT.testSelectorThrowsException",
    "OneWaySendExceptionIT.testSendMQNull",
    "OneWaySendExceptionIT.testSendSelectorNull",
    "ProducerGroupAndInstanceNameValidityIT.testTwoProducerSameGroup",
    "ProducerGroupAndInstanceNameValidityIT.testTwoProducerSameGroupAndInstanceName",
}


class Jar:
    """Apache's tests: a class by its name behind `org/apache/rocketmq/test/`."""

    def __init__(self, path: Path) -> None:
        self._code: dict[str, bytes] = {}
        with zipfile.ZipFile(path) as jar:
            for name in jar.namelist():
                _, is_class, inner = name.partition("org/apache/rocketmq/test/")
                if is_class and not inner.startswith("base/BaseConf"):
                    outer = re.split(r"[$.]", inner)[0]
                    self._code[outer] = self._code.get(outer, b"") + jar.read(name)

    def with_tests(self) -> set[str]:
        return {name for name, code in self._code.items() if b"Lorg/junit/Test;" in code}

    def in_process(self) -> set[str]:
        """Return those that name a class of a server, or one of these that does."""
        found: set[str] = set()
        named = rb"rocketmq/(broker|namesrv|proxy|container|controller|store)/"
        while True:
            more = {
                name
                for name, code in self._code.items()
                if name not in found and re.search(named, code)
            }
            if not more:
                return found
            found |= more
            named = rb"rocketmq/test/(%s)\b" % b"|".join(name.encode() for name in found)


class OurBrokers:
    """Our name server and brokers, each a process, permissive about TLS as Apache's are."""

    def __init__(self, rig: ModuleType, home: Path, certificates: Certificates) -> None:
        self._rig = rig
        self._home = home
        self._running: list[Any] = []
        server = certificates.server
        self._tls = ("--tls-cert", str(server.path), "--tls-key", str(server.key))
        self.name_server = ""
        self.brokers: dict[str, str] = {}

    def start(self, names: tuple[str, ...]) -> None:
        self.name_server = self._start("nameserver", "nameserver")
        for name in names:
            under = ("--nameserver", self.name_server, "--broker-name", name, "--flush", "async")
            self.brokers[name] = self._start("broker", name, *under)

    def _start(self, command: str, name: str, *options: str) -> str:
        lines = self._rig.Lines(
            [
                *(str(Path(sys.executable).with_name("sparrowmq")), command, "--port", "0"),
                *("--data", str(self._home / name), *options),
                *(*self._tls, "--tls-mode", "permissive"),
            ],
            cwd=self._home,
            env=dict(os.environ),
            log=self._home / f"{name}-stderr.log",
        )
        self._running.append(lines)
        lines.wait_for("ready line", lambda: lines.lines)
        return str(lines.lines[0].rpartition("=")[2])

    def kill(self) -> None:
        for lines in self._running:
            lines.kill()


class ApacheBrokers:
    """Apache's name server and brokers, each a JVM: the control, what its own tests show of it."""

    def __init__(self, rig: ModuleType, home: Path, java: Any) -> None:
        self._rig = rig
        self._home = home
        self._java = java
        self._running: list[Any] = []
        self.name_server = ""
        self.brokers: dict[str, str] = {}

    def start(self, names: tuple[str, ...]) -> None:
        for name in names:
            # As IntegrationTestBase sets it.
            settings = {"brokerName": name, "enablePropertyFilter": "true"}
            each = self._rig.ApacheCluster(self._java, self._home / name / "store", **settings)
            self._running.append(each)
            each.start(name_server=self.name_server)
            self.name_server = each.name_server
            self.brokers[name] = each.broker

    def kill(self) -> None:
        for each in self._running:
            each.kill()


@pytest.fixture(scope="module", params=["ours", "apache"])
def cluster(
    request: pytest.FixtureRequest,
    java: Any,
    rig: ModuleType,
    certificates: Certificates,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OurBrokers | ApacheBrokers]:
    home = tmp_path_factory.mktemp("suite")
    started: OurBrokers | ApacheBrokers
    if request.param == "ours":
        started = OurBrokers(rig, home, certificates)
    else:
        started = ApacheBrokers(rig, home, java)
    try:
        started.start(BROKERS[java.version])
        yield started
    finally:
        started.kill()


@pytest.fixture(scope="module")
def jar(java: Any, rig: ModuleType) -> Jar:
    """Apache's tests, fetched, and our classes that stand before them, compiled."""
    rig.fetch_jars(java.version, "suite-jars")
    sources = rig.HERE / "java" / "suite"
    rig.compile_java(
        rig.find_tool("javac"),
        java.version,
        [sources / "Suite.java", sources / java.version / "BaseConf.java"],
        "suite-jars",
    )
    name = f"rocketmq-test-{java.version}-tests.jar"
    return Jar(rig.cache_of(java.version) / "suite-jars" / name)


def test_apache_s_integration_tests_pass(
    java: Any, cluster: OurBrokers | ApacheBrokers, jar: Jar
) -> None:
    runnable = sorted(jar.with_tests() - jar.in_process() - WITHOUT_BROKER)
    brokers = ",".join(f"{name}={address}" for name, address in cluster.brokers.items())
    settings = {"nameServer": cluster.name_server, "brokers": brokers}

    lines = java.start(
        "Suite",
        *(f"org.apache.rocketmq.test.{name.replace('/', '.')}" for name in runnable),
        jars="suite-jars",
        properties={f"suite.{name}": value for name, value in settings.items()},
    )
    try:
        lines.wait_for("last test", lambda: lines.named("done"), timeout_s=3_000)
    finally:
        lines.kill()

    tests = {each["name"]: each for each in lines.named("test")}
    assert {name: each["failure"] for name, each in tests.items() if each["failure"]} == {}
    assert {name for name, each in tests.items() if not each["stored"]} <= STORE_NOTHING
    # Half messages, those that were committed, and what says that they have ended.
    assert tests["TransactionalMsgIT.testMessageVisibility"]["stored"] > 120 + 48
    assert COUNTS[java.version] == Counts(len(tests), len(jar.with_tests()) - len(runnable))
