"""A producer of transactions over a broker's machine: it answers what the broker asks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random

from tests.broker.disk_machine import Machine

from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.message_id import decode_offset_msg_id
from sparrowmq.protocol.properties import find_property
from sparrowmq.protocol.record import decode_record
from sparrowmq.serving.connections import Push
from sparrowmq.simulation.faulty_disk import SimulatedStorage

GROUP = "GID_p"
COMMIT, ROLLBACK = 8, 12


@dataclass
class Transaction:
    """What a producer knows of one transaction: `end` is None until it has decided."""

    key: str
    half: dict[str, str]
    end: int | None = None
    is_confirmed: bool = False


@dataclass
class Producer:
    """A producer group that outlives its brokers.

    Args:
        in_doubt: the transactions of which an end was refused or not answered.
    """

    rng: Random
    transactions: dict[str, Transaction] = field(default_factory=dict)
    in_doubt: set[str] = field(default_factory=set)
    asked_late: list[str] = field(default_factory=list)
    is_patient: bool = True

    def outcome_of(self, key: str) -> int | None:
        """Give the outcome of a half message, also of one whose send was never answered."""
        known = self.transactions.get(key)
        if known is None:
            return ROLLBACK
        if known.is_confirmed:
            self.asked_late.append(key)
        if known.end is None and not self.is_patient:
            known.end = self.rng.choice((COMMIT, ROLLBACK))
        return known.end


class Life(Machine):
    """A broker from its start to its end; the producer is connected to it."""

    def __init__(
        self,
        storage: SimulatedStorage,
        producer: Producer,
        now_ms: int,
        *,
        is_sync: bool = True,
    ) -> None:
        self.producer = producer
        super().__init__(
            storage,
            is_sync=is_sync,
            now_ms=now_ms,
            store_settings={
                "commit_log_file_size": 16_384,
                "consume_queue_file_size": 200,
                "checkpoint_interval_ms": 500,
            },
            transaction_timeout_ms=300,
            transaction_check_interval_ms=700,
            transaction_check_max=1_000,
        )

    def load(self) -> None:
        """Start, and connect the producer."""
        super().load()
        body = {"clientID": "p", "producerDataSet": [{"groupName": GROUP}]}
        self.call(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())

    def pass_time(self, duration_ms: int = 100) -> None:
        """Let time pass, and answer at once what the broker asks."""
        for _ in range(duration_ms // 100):
            self.outputs.clear()
            super().pass_time(100)
            for each in list(self.outputs):
                if isinstance(each, Push) and each.connection is self.connection:
                    self.answer(each)

    def answer(self, push: Push) -> None:
        assert push.command.code == RequestCode.CHECK_TRANSACTION_STATE
        fields = dict(push.command.ext_fields or {})
        assert fields["msgId"].encode() == decode_record(push.command.body or b"").body
        outcome = self.producer.outcome_of(fields["msgId"])
        if outcome is not None:
            self.end(fields["msgId"], {**fields, "producerGroup": GROUP}, outcome)

    def send_half(self, key: str) -> None:
        properties = f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01{GROUP}"
        fields = dict(zip("abcdefghi", (GROUP, "T", "TBW102", "4", "0", "4"), strict=False))
        fields |= {"g": str(self.now_ms), "h": "0", "i": properties}
        reply = self.ask(RequestCode.SEND_MESSAGE_V2, fields, key.encode())
        assert reply.code == ResponseCode.SUCCESS
        answered = reply.ext_fields or {}
        half = {
            "producerGroup": GROUP,
            "tranStateTableOffset": answered["queueOffset"],
            "commitLogOffset": str(decode_offset_msg_id(answered["msgId"])[1]),
            "msgId": key,
        }
        self.producer.transactions[key] = Transaction(key, half)

    def end(self, key: str, half: dict[str, str], outcome: int) -> None:
        fields = {**half, "commitOrRollback": str(outcome)}
        in_doubt = self.producer.in_doubt
        is_known = key in in_doubt
        in_doubt.add(key)
        code = self.call(RequestCode.END_TRANSACTION, fields)
        assert code == ResponseCode.SUCCESS
        if not is_known:
            in_doubt.discard(key)
        if key in self.producer.transactions:
            self.producer.transactions[key].is_confirmed = True

    def keys_in(self, topic: str) -> list[str]:
        return [find_property(each.properties, "UNIQ_KEY") for each in self.records(topic)]
