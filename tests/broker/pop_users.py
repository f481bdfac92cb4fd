"""Users of pops over a broker's machine, who check what comes as they work."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tests.broker.disk_machine import GROUP, Machine

from sparrowmq.model import MessageExt
from sparrowmq.protocol.bodies import SubscriptionGroupConfig
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.headers import decode_header, encode_header
from sparrowmq.protocol.pop_handle import (
    INIT_MIN,
    ChangeInvisibleTimeResponseHeader,
    PopHandle,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    decode_popped,
    handle_of,
    start_offsets,
)
from sparrowmq.simulation.faulty_disk import PowerCut

RETRIES_MAX = 3
INVISIBLE_MS_MAX = 2_000
DEAD_LETTERS = f"%DLQ%{GROUP}"


@dataclass
class PopUsers:
    """Users who send messages, pop them, and acknowledge some, until the power goes.

    Args:
        sent: the messages whose send was confirmed.
        ended: the messages whose acknowledgement was confirmed.
        ended_in_time: these, if the message was hidden still: it was no dead letter.
        in_doubt: those of `ended`, and those whose acknowledgement was never answered.
        hidden_until_ms: how long a confirmed pop or change hides a message.
        attempts: the number of deliveries, by message.
    """

    rng: Random
    topic: str = "T"
    sent: set[bytes] = field(default_factory=set)
    ended: set[bytes] = field(default_factory=set)
    ended_in_time: set[bytes] = field(default_factory=set)
    in_doubt: set[bytes] = field(default_factory=set)
    hidden_until_ms: dict[bytes, int] = field(default_factory=dict)
    attempts: dict[bytes, int] = field(default_factory=dict)
    handles: dict[bytes, PopHandle] = field(default_factory=dict)
    count: int = 0

    def work(self, machine: Machine) -> None:
        """Send, pop, acknowledge, change times and wait."""
        while True:
            if not self.step(machine):
                machine.pass_time(self.rng.choice((100, 800)))

    def step(self, machine: Machine) -> bool:
        """Do one thing; False if there is nothing to do."""
        step = self.rng.randrange(8)
        if step <= 1:
            self.count += 1
            body = b"m%d" % self.count
            machine.send(body, topic=self.topic)
            self.sent.add(body)
        elif step <= 3:
            self.pop(machine, count_max=4)
        elif step == 4 and self.handles:
            self.acknowledge(machine)
        elif step == 5 and self.handles:
            self.change(machine)
        else:
            return False
        return True

    def pop(self, machine: Machine, *, count_max: int) -> int:
        """Pop, check what comes, and return how many messages came."""
        header = PopMessageRequestHeader(
            consumer_group=GROUP,
            topic=self.topic,
            queue_id=-1,
            max_msg_nums=count_max,
            invisible_time_ms=self.rng.randrange(100, INVISIBLE_MS_MAX),
            poll_time_ms=0,
            born_timestamp_ms=machine.now_ms,
            init_mode=INIT_MIN,
        )
        reply = machine.ask(RequestCode.POP_MESSAGE, encode_header(header))
        if reply.code == ResponseCode.POLLING_TIMEOUT:
            return 0
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        answer = decode_header(PopMessageResponseHeader, reply.ext_fields)
        name = machine.broker.state.config.broker_name
        messages = decode_popped(reply.body or b"", broker_name=name)
        for message in messages:
            self.note(machine, message, answer)
        return len(messages)

    def note(self, machine: Machine, message: MessageExt, answer: PopMessageResponseHeader) -> None:
        """Check that a message may come now, and note its handle."""
        body = message.body
        assert body not in self.ended, f"{body!r} comes after its acknowledgement"
        hidden_ms = self.hidden_until_ms.get(body, 0) - machine.now_ms
        assert hidden_ms <= 0, f"{body!r} comes {hidden_ms} ms early"
        # An attempt whose answer was lost counts too.
        times = self.attempts[body] = self.attempts.get(body, 0) + 1
        assert times <= message.reconsume_times + 1 <= RETRIES_MAX + 1, f"{body!r}: {times}"
        self.handles[body] = handle_of(message, answer, start_offsets(answer), address="")
        self.hidden_until_ms[body] = machine.now_ms + answer.invisible_time_ms

    def acknowledge(self, machine: Machine) -> None:
        """Acknowledge a message, perhaps too late."""
        body = self.rng.choice(sorted(self.handles))
        header = self.handles.pop(body).ack_header(GROUP, self.topic)
        is_known = body in self.in_doubt
        self.in_doubt.add(body)
        try:
            code = machine.call(RequestCode.ACK_MESSAGE, encode_header(header))
        except PowerCut:
            # The answer may have gone out before.
            self.ended.update(
                body for each in machine.answers() if each.code == ResponseCode.SUCCESS
            )
            raise
        if code == ResponseCode.SUCCESS:
            self.ended.add(body)
            if machine.now_ms < self.hidden_until_ms.get(body, 0):
                self.ended_in_time.add(body)
        elif not is_known:
            self.in_doubt.discard(body)

    def change(self, machine: Machine) -> None:
        """Hide a message for another time."""
        body = self.rng.choice(sorted(self.handles))
        handle, hidden_ms = self.handles[body], self.hidden_until_ms.pop(body, 0)
        invisible_ms = self.rng.randrange(100, INVISIBLE_MS_MAX)
        header = handle.change_header(GROUP, self.topic, invisible_ms=invisible_ms)
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        reply = machine.ask(code, encode_header(header))
        if reply.code == ResponseCode.SUCCESS:
            changed = decode_header(ChangeInvisibleTimeResponseHeader, reply.ext_fields)
            self.handles[body] = handle.changed(changed)
            self.hidden_until_ms[body] = machine.now_ms + invisible_ms
        else:
            self.hidden_until_ms[body] = hidden_ms


def set_group(machine: Machine) -> None:
    config = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=RETRIES_MAX)
    machine.broker.state.put_group(config, timestamp_ms=machine.now_ms)
    machine.pass_time(200)
