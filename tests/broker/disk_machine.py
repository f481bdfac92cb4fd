"""A broker's host over a disk in memory whose power fails, for tests of what a broker keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tests.broker.conftest import send_fields

from sparrowmq.broker.broker import Broker
from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.config_files import read_tables
from sparrowmq.broker.host import BrokerHost, Round, RoundLane, attempt
from sparrowmq.calling.effects import Operation
from sparrowmq.protocol.bodies import ConsumerOffsetTable, TopicConfig
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.record import Record, decode_record, encode_host
from sparrowmq.serving.connections import Connection, Output, Reply, Written
from sparrowmq.simulation.faulty_disk import SimulatedStorage
from sparrowmq.store import FlushMode, MessageStore, StoreConfig
from steps import made

T = TypeVar("T")
GROUP = "GID_c"


class Losing:
    """Dice of a power cut that takes all that was not synced."""

    def random(self) -> float:
        return 0.99

    def randrange(self, start: int, stop: int, /) -> int:
        return start

    def choice(self, seq: Sequence[T], /) -> T:
        return seq[0]

    def expovariate(self, lambd: float, /) -> float:
        return 1 / lambd


class Machine:
    """A broker's host over a disk in memory: its rounds run at once, flushes unless they wait.

    Args:
        store_settings: settings of the store that are not the usual ones here.
        settings: the same of the broker.
    """

    def __init__(
        self,
        storage: SimulatedStorage,
        *,
        is_sync: bool = True,
        now_ms: int = 1_700_000_000_000,
        store_settings: Mapping[str, int] | None = None,
        **settings: int,
    ) -> None:
        self.storage = storage
        self.is_sync = is_sync
        self.now_ms = now_ms
        # The lead of the wall clock.
        self.lead_ms = 0
        self.waits = False
        self._settings: dict[str, Any] = settings
        self._store_settings: dict[str, Any] = {
            "commit_log_file_size": 65_536,
            "consume_queue_file_size": 2_000,
            **(store_settings or {}),
        }
        self.start()

    def start(self) -> None:
        self.load()
        topic = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
        self.broker.state.put_topic(topic, timestamp_ms=self.now_ms)
        self.pass_time(200)

    def load(self) -> None:
        """Start up to the moment from which requests are served."""
        mode = FlushMode.SYNC if self.is_sync else FlushMode.ASYNC
        config = StoreConfig(
            flush=mode, index_slot_count=7, index_entry_count=50, **self._store_settings
        )
        self.store = MessageStore(self.storage, config)
        self.store.load(timestamp_ms=self.timestamp_ms())
        self.broker = Broker(
            BrokerConfig(flush=mode, async_flush_interval_ms=100, **self._settings),
            self.store,
            random_below=lambda _: 0,
            saved=read_tables(self.storage).tables,
            now_ms=self.now_ms,
            timestamp_ms=self.timestamp_ms(),
        )
        self.outputs: list[Output] = []
        self.waiting: list[Round] = []
        self.host = BrokerHost(self.broker, self.storage, self, name_servers=())
        for round in self.host.first_rounds():
            round.end(attempt(round))
        self.connection = Connection(1, "10.0.0.1:1", encode_host("10.0.0.1:1"))

    def lose_power(self) -> None:
        self.storage.lose_power()
        self.waits = False
        self.start()

    def end_waiting(self) -> None:
        """Let the flushes end that have waited; later ones do not wait."""
        self.waits = False
        for round in self.waiting:
            round.end(attempt(round))

    def stop(self) -> None:
        for round in self.host.last_rounds():
            round.end(attempt(round))
        self.store.close()

    def pass_time(self, duration_ms: int) -> None:
        for _ in range(duration_ms // 100):
            self.now_ms += 100
            self.host.tick()

    def call(self, code: int, fields: dict[str, str], body: bytes | None = None) -> int:
        """Serve a request that is answered at once."""
        return self.ask(code, fields, body).code

    def ask(self, code: int, fields: dict[str, str], body: bytes | None = None) -> RemotingCommand:
        """Serve a request, and return the answer that it gets at once."""
        (answer,) = self.serve(code, fields, body)
        return answer

    def serve(
        self, code: int, fields: dict[str, str], body: bytes | None = None
    ) -> list[RemotingCommand]:
        """Serve a request, and return what is answered at once."""
        request = RemotingCommand(code=code, ext_fields=fields, body=body, opaque=7)
        return self.handle(request, self.connection)

    def handle(self, request: RemotingCommand, connection: Connection) -> list[RemotingCommand]:
        """Serve a request of any connection, and return what is answered at once."""
        self.outputs.clear()
        self.perform(
            self.broker.handle(
                request, connection, now_ms=self.now_ms, timestamp_ms=self.timestamp_ms()
            )
        )
        self.end_turn()
        return self.answers()

    def answers(self) -> list[RemotingCommand]:
        """Return the answers since the last request."""
        return [each.command for each in self.outputs if isinstance(each, Reply | Written)]

    def send(self, body: bytes, properties: str = "", *, topic: str = "T") -> str:
        """Send a message; return its recall handle, "" without one."""
        fields = send_fields(topic, 0, properties)
        answer = self.ask(RequestCode.SEND_MESSAGE_V2, fields, body)
        assert answer.code == ResponseCode.SUCCESS
        return (answer.ext_fields or {}).get("recallHandle", "")

    def send_back(self, body: bytes) -> None:
        self.send(body)
        entry = self.store.queues.entry("T", 0, self.store.queues.max_offset("T", 0) - 1)
        assert entry is not None
        self.give_back(entry[0], GROUP)

    def give_back(self, position: int, group: str) -> None:
        """Send the message at a position back for a group."""
        fields = {"offset": str(position), "group": group, "delayLevel": "1", "originTopic": "T"}
        assert self.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields) == 0

    def recall(self, handle: str) -> int:
        """Take a message back by the handle that `send` returned; return the answer's code."""
        fields = {"producerGroup": "GID_p", "topic": "T", "recallHandle": handle}
        return self.call(RequestCode.RECALL_MESSAGE, {**fields, "bname": "broker-a"})

    def commit(self, offset: int) -> None:
        fields = {"consumerGroup": GROUP, "topic": "T", "queueId": "0"}
        fields["commitOffset"] = str(offset)
        assert self.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields) == 0

    def bodies(self, topic: str) -> list[bytes]:
        return [record.body for record in self.records(topic)]

    def records(self, topic: str) -> list[Record]:
        found = []
        for offset in range(self.store.queues.max_offset(topic, 0)):
            entry = self.store.queues.entry(topic, 0, offset)
            assert entry is not None
            found.append(decode_record(self.store.records.read(*entry[:2]) or b""))
        return found

    def saved_offset(self) -> int | None:
        offsets = read_tables(self.storage).tables.offsets or ConsumerOffsetTable()
        return offsets.offset_table.get(f"T@{GROUP}", {}).get(0)

    # --- the host's world -------------------------------------------------------------------

    def monotonic_ms(self) -> int:
        return self.now_ms

    def timestamp_ms(self) -> int:
        return self.now_ms + self.lead_ms

    def perform(self, outputs: Sequence[Output]) -> None:
        self.outputs += made(outputs)

    def end_turn(self) -> None:
        self.host.settle()
        self.host.begin_rounds()

    def end_turn_soon(self) -> None:
        raise AssertionError("no pull is held")

    def begin_round(self, round: Round) -> None:
        if self.waits and round.lane is RoundLane.FLUSH:
            self.waiting.append(round)
        else:
            round.end(attempt(round))

    def begin_operation(self, operation: Operation[None]) -> None:
        assert list(operation) == []
