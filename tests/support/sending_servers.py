"""A name server and brokers to which messages are sent; without sockets."""

from __future__ import annotations

from sparrowmq.protocol.bodies import BrokerData, QueueData, TopicRouteData, encode_body
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to

SENDS = {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}


class Servers:
    """A name server and brokers `a` and `b`; what fails is set by the test."""

    def __init__(self, *brokers: str, queues: int = 2, perm: int = 6) -> None:
        self.topics = {"T": brokers}
        self.queues = queues
        self.perm = perm
        self.failures: dict[str, list[Exception | int]] = {}
        self.remark = "said"
        self.offset_msg_id, self.offset = "OFFSET_ID", "7"
        # Further fields of each answer to a send.
        self.more: dict[str, str] = {}
        # Which broker serves the queues of the topic, if it is a static one.
        self.static_owner = ""
        self.sent: list[tuple[str, RemotingCommand]] = []

    def __call__(self, address: str, request: RemotingCommand) -> RemotingCommand:
        fields = dict(request.ext_fields or {})
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return self.route(request, fields["topic"])
        if request.code not in SENDS:
            return response_to(request)
        self.sent.append((address, response_to(request, ext_fields=fields, body=request.body)))
        failures = self.failures.get(address, [])
        failure = failures.pop(0) if failures else ResponseCode.SUCCESS
        if isinstance(failure, Exception):
            raise failure
        answer = {"msgId": self.offset_msg_id, "queueId": fields["e"], "queueOffset": self.offset}
        return response_to(request, failure, remark=self.remark, ext_fields=answer | self.more)

    def route(self, request: RemotingCommand, topic: str) -> RemotingCommand:
        brokers = self.topics.get(topic)
        if brokers is None:
            return response_to(request, ResponseCode.TOPIC_NOT_EXIST)
        data = TopicRouteData(
            broker_datas=[BrokerData(broker_name=n, broker_addrs={0: f"{n}:1"}) for n in brokers],
            queue_datas=[
                QueueData(
                    broker_name=name,
                    read_queue_nums=self.queues,
                    write_queue_nums=self.queues,
                    perm=self.perm,
                )
                for name in brokers
            ],
        )
        body = encode_body(data)
        if name := self.static_owner.encode():
            # As Apache's name server writes it, with numbers as keys.
            body = body[:-1] + (
                b',"topicQueueMappingByBroker":{"%b":{"bname":"%b","currIdMap":{0:0,1:1},'
                b'"dirty":false,"epoch":1,"scope":"__global__","topic":"T","totalQueues":2}}}'
            ) % (name, name)
        return response_to(request, body=body)
