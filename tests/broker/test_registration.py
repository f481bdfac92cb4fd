"""What a broker tells a name server, which is a real one without sockets."""

from __future__ import annotations

import pytest
from tests.nameserver.conftest import Rig

from play import Play
from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.registration import Registrar, RegistrationWork
from sparrowmq.errors import BrokerError
from sparrowmq.nameserver.name_server import NameServer
from sparrowmq.protocol.bodies import DataVersion, TopicConfig, TopicConfigTable
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to

ADDRESS = "n:1"
VERSION, REGISTER = RequestCode.QUERY_DATA_VERSION, RequestCode.REGISTER_BROKER


class Registering:
    """A broker that makes topics and registers them at one name server."""

    def __init__(self) -> None:
        self.registrar = Registrar(BrokerConfig(address="10.0.0.1:10911"))
        self.rig = Rig()
        self.run = Play(self._answer)
        self.is_refused = False
        self._connection = self.rig.connect()
        self._topics: dict[str, TopicConfig] = {}

    def _answer(self, _: str, request: RemotingCommand) -> RemotingCommand:
        if self.is_refused:
            return response_to(request, ResponseCode.SYSTEM_ERROR, remark="no room")
        fields, body = dict(request.ext_fields or {}), request.body
        return self.rig.call(request.code, fields, body, connection=self._connection)

    def make(self, *names: str) -> dict[str, TopicConfig]:
        """Make topics in a round that passes the name server over."""
        made_now = {name: TopicConfig(topic_name=name) for name in names}
        self._topics |= made_now
        return made_now

    def register(self, *names: str) -> list[int]:
        """Make topics, and register; return the codes of the requests."""
        base = DataVersion(counter=len(self._topics))
        made_now = self.make(*names)
        version = DataVersion(counter=len(self._topics))
        work = RegistrationWork(
            1,
            base,
            TopicConfigTable(topic_config_table=made_now, data_version=version),
            TopicConfigTable(topic_config_table=dict(self._topics), data_version=version),
        )
        before = len(self.run.requests)
        self.run(self.registrar.register(work, name_server=ADDRESS))
        return [request.code for _, request in self.run.requests[before:]]

    def knows(self) -> list[str]:
        """Return the topics that the name server knows."""
        return self.rig.server.routes.topics()


@pytest.fixture
def broker() -> Registering:
    return Registering()


def test_changes_alone_are_sent_to_a_name_server_that_knows_the_rest(broker: Registering) -> None:
    assert broker.register("T", "U") == [REGISTER]

    assert broker.register() == [VERSION]
    assert broker.register("V") == [VERSION, REGISTER]

    assert b'"T"' not in (broker.run.requests[-1][1].body or b"")
    assert broker.knows() == ["T", "U", "V"]


def test_name_server_that_has_forgotten_the_broker_gets_all_topics(broker: Registering) -> None:
    broker.register("T")
    broker.rig.server = NameServer()

    assert broker.register("U") == [VERSION, REGISTER]

    assert broker.knows() == ["T", "U"]


def test_name_server_that_a_round_has_passed_over_gets_all_topics(broker: Registering) -> None:
    broker.register("T")
    broker.make("U")

    assert broker.register("V") == [REGISTER]

    assert broker.knows() == ["T", "U", "V"]


def test_all_topics_are_registered_anew_over_a_new_connection(broker: Registering) -> None:
    broker.register("T")

    broker.registrar.forget(ADDRESS)

    assert broker.register() == [REGISTER]
    assert broker.knows() == ["T"]


def test_refused_registration_is_an_error_and_done_again(broker: Registering) -> None:
    broker.is_refused = True
    with pytest.raises(BrokerError, match="no room"):
        broker.register("T")
    broker.is_refused = False

    assert broker.register() == [REGISTER]
    assert broker.knows() == ["T"]
