from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from sparrowmq.nameserver.name_server import NameServer
from sparrowmq.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.record import encode_host
from sparrowmq.protocol.register_body import compute_body_crc, encode_register_body
from sparrowmq.serving.connections import Connection, Fact, Reply
from steps import made


@dataclass
class Rig:
    """A name server without sockets."""

    server: NameServer = field(default_factory=NameServer)
    now_ms: int = 0
    numbers: int = 0
    facts: list[Fact] = field(default_factory=list)

    def connect(self, ip: str = "10.0.0.9") -> Connection:
        self.numbers += 1
        address = f"{ip}:{self.numbers}"
        return Connection(self.numbers, address, encode_host(address))

    def call(
        self,
        code: int,
        ext_fields: dict[str, str] | None = None,
        body: bytes | None = None,
        *,
        connection: Connection | None = None,
        **extra: Any,
    ) -> RemotingCommand:
        command = RemotingCommand(code=code, ext_fields=ext_fields, body=body, **extra)
        connection = connection or self.connect()
        outputs = made(self.server.handle(command, connection, now_ms=self.now_ms, timestamp_ms=0))
        self.facts += [output for output in outputs if isinstance(output, Fact)]
        (reply,) = [output.command for output in outputs if isinstance(output, Reply)]
        return reply

    def register(
        self,
        address: str = "10.0.0.1:10911",
        *,
        name: str = "broker-a",
        broker_id: int = 0,
        topics: dict[str, int] | None = None,
        flags: dict[str, int] | None = None,
        counter: int = 1,
        compressed: bool = False,
        connection: Connection | None = None,
        **header: str,
    ) -> RemotingCommand:
        table = {
            topic: TopicConfig(
                topic_name=topic,
                read_queue_nums=count,
                write_queue_nums=count,
                topic_sys_flag=(flags or {}).get(topic, 0),
            )
            for topic, count in ({"T": 4} if topics is None else topics).items()
        }
        wrapper = TopicConfigTable(
            topic_config_table=table, data_version=DataVersion(timestamp_ms=7, counter=counter)
        )
        body = encode_register_body(
            RegisterBrokerBody(topic_config_serialize_wrapper=wrapper), compressed=compressed
        )
        fields = {
            "brokerName": name,
            "brokerAddr": address,
            "clusterName": "DefaultCluster",
            "haServerAddr": address + "2",
            "brokerId": str(broker_id),
            "compressed": str(compressed).lower(),
            "bodyCrc32": str(compute_body_crc(body)),
            **header,
        }
        return self.call(RequestCode.REGISTER_BROKER, fields, body, connection=connection)


@pytest.fixture
def rig() -> Rig:
    return Rig()
