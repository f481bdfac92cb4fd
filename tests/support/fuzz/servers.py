"""Targets: whatever a request holds, a server answers it once and raises nothing."""

from __future__ import annotations

from random import Random

from fuzz.inputs import choose, to_command
from fuzz.stores import CONFIG
from sparrowmq.broker.broker import PROCESSORS as BROKER_PROCESSORS
from sparrowmq.broker.broker import Broker
from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.config_saving import SavedTables
from sparrowmq.broker.journal_records import decode_changes
from sparrowmq.errors import ProtocolError
from sparrowmq.nameserver.name_server import PROCESSORS as NAME_SERVER_PROCESSORS
from sparrowmq.nameserver.name_server import NameServer
from sparrowmq.protocol.bodies import TopicConfig, TopicConfigTable
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, decode_request, encode_frame
from sparrowmq.serving.connections import Connection, Output, Reply, Written
from sparrowmq.simulation.faulty_disk import SimulatedStorage
from sparrowmq.store import MessageStore
from steps import made

BROKER_CODES = sorted(BROKER_PROCESSORS)
NAME_SERVER_CODES = sorted(NAME_SERVER_PROCESSORS)
# How many requests one input may hold: a heartbeat and what needs it, for instance.
REQUESTS_MAX = 4
REQUESTS_SEPARATOR = b"\0\0"
_PEER = Connection(1, "10.0.0.1:5", bytes([10, 0, 0, 1, 0, 0, 0, 5]))
_TOPIC = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4, perm=6)


def sent(command: RemotingCommand) -> RemotingCommand:
    """Return a request as a server reads it from a frame: usual headers as types.

    What no frame can hold, or a server refuses before its machine gets it, stays as it is.
    """
    try:
        frame = encode_frame(command)
        (received,) = FrameDecoder(decode=decode_request).receive_data(frame)
    except ProtocolError:
        return command
    return received


def check_broker(data: bytes) -> None:
    """A broker answers each request, now or when it stops to hold the pull."""
    store = MessageStore(SimulatedStorage(Random(1)), CONFIG)
    store.load(timestamp_ms=1)
    broker = Broker(
        BrokerConfig(address="127.0.0.1:10911"),
        store,
        random_below=lambda count: count - 1,
        saved=SavedTables(topics=TopicConfigTable(topic_config_table={"T": _TOPIC})),
        now_ms=0,
        timestamp_ms=0,
    )
    requests = data.split(REQUESTS_SEPARATOR, REQUESTS_MAX - 1)
    outputs: list[Output] = []
    for opaque, request in enumerate(requests):
        code, rest = choose(request, BROKER_CODES)
        command = to_command(code, rest)
        command.opaque = opaque
        command = sent(command)
        outputs += made(broker.handle(command, _PEER, now_ms=0, timestamp_ms=0))
        flush = broker.flush_work(now_ms=0)
        if flush is not None:
            flush.run()
            outputs += broker.flushed(flush, None, now_ms=0)
        journal = broker.journal_work(now_ms=0)
        if journal is not None:
            assert decode_changes(journal.encode())
            outputs += broker.journaled(journal, None)
        save = broker.save_work(now_ms=0)
        if save is not None:
            assert all(content for _, content in save.encode())
            outputs += broker.saved(save, None)
        if broker.registration_work() is not None:
            outputs += broker.registered(is_complete=True, now_ms=0)
    outputs += broker.tick(now_ms=0, timestamp_ms=0)
    replies = [output.command for output in outputs if isinstance(output, Reply | Written)]
    assert len(requests) == len(replies) + len(broker.state.holds)
    assert len({reply.opaque for reply in replies}) == len(replies)
    broker.connection_closed(_PEER, now_ms=0, timestamp_ms=0)
    store.close()


def check_name_server(data: bytes) -> None:
    """A name server answers each request, and forgets a connection that closes."""
    server = NameServer()
    requests = data.split(REQUESTS_SEPARATOR, REQUESTS_MAX - 1)
    for request in requests:
        code, rest = choose(request, NAME_SERVER_CODES)
        outputs = made(server.handle(to_command(code, rest), _PEER, now_ms=0, timestamp_ms=0))
        assert len([output for output in outputs if isinstance(output, Reply | Written)]) == 1
    server.connection_closed(_PEER, now_ms=0, timestamp_ms=0)
    assert list(server.routes.broker_names()) == []
