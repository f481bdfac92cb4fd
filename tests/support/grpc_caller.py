"""A client of the gRPC service for tests: one channel, whose calls are methods by name."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import grpc

from sparrowmq.grpc_service.messages import (
    METHODS,
    SERVICE,
    AckMessageEntry,
    Address,
    AddressScheme,
    Duration,
    Endpoints,
    Message,
    MessageQueue,
    MessageType,
    Resource,
    SystemProperties,
)

if TYPE_CHECKING:
    from certificates import Certificate

_NOW = "20261124T000000Z"


class GrpcCaller:
    """Calls the service in the name of one client.

    Args:
        address: the service's address, `ip:port`.
        keys: the access key and the secret key, to sign the calls.
        ca: the certificate of who has signed the service's; None to speak plain text.
        pair: the client's own certificate.
    """

    def __init__(
        self,
        address: str,
        client_id: str = "tester@1",
        *,
        keys: tuple[str, str] | None = None,
        ca: Path | None = None,
        pair: Certificate | None = None,
        language: str = "PYTHON",
        version: str = "5.0.7",
    ) -> None:
        # As the official clients.
        options = (("grpc.max_receive_message_length", -1),)
        if ca is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            own = (None, None) if pair is None else (pair.key.read_bytes(), pair.path.read_bytes())
            trust = grpc.ssl_channel_credentials(ca.read_bytes(), *own)
            self._channel = grpc.secure_channel(address, trust, options)
        host, _, port = address.rpartition(":")
        place = Address(host=host, port=int(port))
        self.endpoints = Endpoints(scheme=AddressScheme.IPv4, addresses=[place])
        metadata = [
            ("x-mq-client-id", client_id),
            ("x-mq-language", language),
            ("x-mq-client-version", version),
        ]
        if keys is not None:
            signature = hmac.new(keys[1].encode(), _NOW.encode(), "sha1").hexdigest()
            metadata += [
                ("x-mq-date-time", _NOW),
                (
                    "authorization",
                    f"MQv2-HMAC-SHA1 Credential={keys[0]}, SignedHeaders=x-mq-date-time, "
                    f"Signature={signature}",
                ),
            ]
        self._metadata = tuple(metadata)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, name: str, *, timeout_s: float = 30, **fields: Any) -> Any:
        """Call a method; return its answer, or for a stream an iterator of its answers."""
        (request,) = (each.request for each in METHODS if each.name == name)
        data = request(**fields).SerializeToString()
        return self.call_by_bytes(name, data, timeout_s=timeout_s)

    def call_by_bytes(self, name: str, data: bytes, *, timeout_s: float = 30) -> Any:
        """Call a method with any bytes as its request."""
        (method,) = (each for each in METHODS if each.name == name)
        kind = "unary_stream" if method.streams_responses else "unary_unary"
        caller = getattr(self._channel, kind)(
            f"/{SERVICE}/{name}", response_deserializer=method.response.FromString
        )
        return caller(data, timeout=timeout_s, metadata=self._metadata)

    def begin(self, name: str, requests: Iterator[bytes]) -> Any:
        """Call a method whose request comes when its iterator gives one; return the answer."""
        (method,) = (each for each in METHODS if each.name == name)
        caller = self._channel.stream_unary(
            f"/{SERVICE}/{name}", response_deserializer=method.response.FromString
        )
        return caller(requests, timeout=30, metadata=self._metadata)

    def telemetry(self, commands: Iterator[Any]) -> Any:
        """Open a telemetry stream; return the service's commands."""
        (method,) = (each for each in METHODS if each.name == "Telemetry")
        caller = self._channel.stream_stream(
            f"/{SERVICE}/Telemetry",
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return caller(commands, timeout=60, metadata=self._metadata)

    def send(self, topic: str, body: bytes, **system: Any) -> Any:
        """Send a message; return the entry of the answer."""
        properties = system.pop("properties", {})
        system.setdefault("message_id", f"01{abs(hash(body)):032X}"[:34])
        system.setdefault("message_type", MessageType.NORMAL)
        message = Message(
            topic=Resource(name=topic),
            body=body,
            user_properties=properties,
            system_properties=SystemProperties(**system),
        )
        answer = self.call("SendMessage", messages=[message])
        return answer.entries[0] if answer.entries else answer

    def begin_receive(
        self, topic: str, group: str, *, count: int, timeout_s: float = 30, **fields: Any
    ) -> Any:
        """Receive; return an iterator of the answers."""
        if not fields.get("auto_renew"):
            fields.setdefault("invisible_duration", Duration(seconds=30))
        return self.call(
            "ReceiveMessage",
            timeout_s=timeout_s,
            group=Resource(name=group),
            message_queue=MessageQueue(topic=Resource(name=topic)),
            batch_size=count,
            **fields,
        )

    def receive(
        self, topic: str, group: str, *, count: int = 32, wait_s: int = 5, **fields: Any
    ) -> tuple[Any, list[Any]]:
        """Receive; return the status and the messages."""
        wait = Duration(seconds=wait_s)
        first, *rest = self.begin_receive(
            topic, group, count=count, long_polling_timeout=wait, **fields
        )
        assert not rest or rest[-1].HasField("delivery_timestamp")
        return first.status, [each.message for each in rest if each.HasField("message")]

    def ack(self, topic: str, group: str, message: Any) -> Any:
        """Acknowledge a received message; return the status."""
        system = message.system_properties
        entry = AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
        answer = self.call(
            "AckMessage",
            group=Resource(name=group),
            topic=Resource(name=topic),
            entries=[entry],
        )
        return answer.status

    def change(self, topic: str, group: str, message: Any, duration: Duration) -> Any:
        """Change the invisible time of a message; return the answer."""
        return self.call(
            "ChangeInvisibleDuration",
            group=Resource(name=group),
            topic=Resource(name=topic),
            receipt_handle=message.system_properties.receipt_handle,
            invisible_duration=duration,
            message_id=message.system_properties.message_id,
        )
