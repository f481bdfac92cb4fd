"""A member in Java, as brokers and the doctor see it: heartbeats, and what it says of itself."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

from sparrowmq import MessageModel, MessageQueue
from sparrowmq.model.consuming import ConsumeFromWhere
from sparrowmq.protocol.bodies import (
    ConsumerData,
    ConsumerRunningInfo,
    HeartbeatData,
    LockBatchRequestBody,
    SubscriptionData,
    encode_body,
)
from sparrowmq.protocol.codes import LanguageCode, RequestCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.framing import FrameDecoder, encode_frame

# Below the time after which a broker drops a silent member or a lock.
_PERIOD_S = 3.0


class ForeignMember:
    """Sends heartbeats for a group to one broker, and consumes nothing.

    Args:
        broker: the broker's address.
        says: what the member says of itself.
        locked: queues that it keeps locked.
        reconnects: whether it connects anew once it has answered what it says of itself.
    """

    def __init__(
        self,
        broker: str,
        group: str,
        topic: str,
        *,
        client_id: str,
        says: ConsumerRunningInfo,
        model: MessageModel = MessageModel.CLUSTERING,
        locked: tuple[MessageQueue, ...] = (),
        start: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        reconnects: bool = False,
    ) -> None:
        host, _, port = broker.rpartition(":")
        self._address = (host, int(port))
        self._says, self._reconnects = says, reconnects
        consumer = ConsumerData(
            group_name=group,
            consume_from_where=start,
            message_model=model,
            subscription_data_set=[SubscriptionData(topic=topic, sub_string="*", sub_version=1)],
        )
        beat = HeartbeatData(client_id=client_id, consumer_data_set=[consumer])
        self._requests = [_request(RequestCode.HEART_BEAT, beat)]
        if locked:
            lock = LockBatchRequestBody(
                consumer_group=group, client_id=client_id, mq_set=list(locked)
            )
            self._requests.append(_request(RequestCode.LOCK_BATCH_MQ, lock))
        self._stopped, self._heard = threading.Event(), threading.Event()
        self._sock = socket.create_connection(self._address)
        self._threads = [threading.Thread(target=work) for work in (self._keep, self._serve)]
        self._send()
        for thread in self._threads:
            thread.start()
        assert self._heard.wait(60), f"{broker} does not answer the heartbeat"

    def close(self) -> None:
        """Leave without a word."""
        self._stopped.set()
        self._sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        self._sock.close()

    def _send(self) -> None:
        for request in self._requests:
            self._sock.sendall(request)

    def _keep(self) -> None:
        while not self._stopped.wait(_PERIOD_S):
            with suppress(OSError):
                self._send()

    def _serve(self) -> None:
        decoder = FrameDecoder()
        with suppress(OSError):
            while data := self._sock.recv(1 << 16):
                for command in decoder.receive_data(data):
                    self._heard.set()
                    if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                        answer = response_to(command, body=encode_body(self._says))
                        self._sock.sendall(encode_frame(answer))
                        if self._reconnects:
                            self._reconnects, decoder = False, FrameDecoder()
                            old, self._sock = self._sock, socket.create_connection(self._address)
                            self._send()
                            old.close()
                            break


def _request(code: RequestCode, body: Any) -> bytes:
    return encode_frame(
        RemotingCommand(code=code, body=encode_body(body), language=LanguageCode.JAVA, version=395)
    )
