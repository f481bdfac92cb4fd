"""The cast: starts each process of the demo with its command line."""

from __future__ import annotations

from dataclasses import dataclass

from sparrowmq.demo.board import Board
from sparrowmq.demo.directory import DemoDirectory
from sparrowmq.processes.crew import Child, Crew
from sparrowmq.processes.member_log import MemberLog, start_member

TOPIC = "flights"
QUEUE_COUNT = 8
PRODUCER = "producer"
PRODUCER_GROUP = "GID_airlines"
SPARK = "spark"
FIRST_GROUP = "GID_board"
SECOND_GROUP = "GID_twins"

_READY = "ready "
# Java's default is one message per call; such calls would only measure the listener pool.
_MESSAGES_PER_CALL = 64
_LISTENER_THREADS = 2
_PULL_BATCH_SIZE = 512


@dataclass(slots=True)
class Cast:
    """Starts processes, and keeps the name server's address once the server runs.

    Args:
        crew: the owner of the processes.
        board: the state that gets new members.
        directory: the output directory.
        limit: the most flights to produce; None for all.
    """

    crew: Crew
    board: Board
    directory: DemoDirectory
    limit: int | None
    name_server: str = ""

    def start_name_server(self) -> Child:
        """Start a name server on a free port."""
        data = self.directory.run / "nameserver"
        return self._start_server("nameserver", "--data", str(data))

    def start_broker(self) -> Child:
        """Start a broker on a free port; its data outlives the demo."""
        data = str(self.directory.broker)
        return self._start_server("broker", "--data", data, "--nameserver", self.name_server)

    def start_producer(self) -> Child:
        """Start the producer, which loads the flights and waits for commands."""
        limit = [] if self.limit is None else ["--limit", str(self.limit)]
        return self.crew.start(
            PRODUCER,
            [
                *("-m", "sparrowmq.demo.produce", "--name", PRODUCER, "--group", PRODUCER_GROUP),
                *("--topic", TOPIC, "--logbooks", str(self.directory.logbooks), *limit),
            ],
            has_input=True,
            may_finish=True,
        )

    def start_member(
        self,
        name: str,
        group: str,
        *,
        client_ip: str | None = None,
        instance_name: str | None = None,
    ) -> tuple[Child, MemberLog]:
        """Start a member of a group; without a name of its own it gets a unique one."""
        child, member = start_member(
            self.crew,
            name,
            group,
            directory=self.directory.logbooks,
            name_server=self.name_server,
            topic=TOPIC,
            client_ip=client_ip,
            instance_name=instance_name,
            messages_per_call=_MESSAGES_PER_CALL,
            pull_batch_size=_PULL_BATCH_SIZE,
            threads=_LISTENER_THREADS,
        )
        self.board.members[name] = member
        return child, member

    def start_spark(self, *, batches: int) -> Child:
        """Start Spark, or start it again."""
        return self.crew.start(
            SPARK,
            [
                *("-m", "sparrowmq.demo.spark_job", "--name", SPARK, "--producer", PRODUCER),
                *("--name-server", self.name_server, "--topic", TOPIC, "--batches", str(batches)),
                *("--out", str(self.directory.ingest)),
                *("--logbooks", str(self.directory.logbooks)),
                *("--question", str(self.directory.question)),
                *("--answers", str(self.directory.answers)),
            ],
            # Otherwise Spark would put work files into the current directory.
            environment={"SPARK_LOCAL_DIRS": str(self.directory.run / "spark")},
        )

    def _start_server(self, kind: str, *arguments: str) -> Child:
        return self.crew.start(kind, ["-m", "sparrowmq.cli.main", kind, "--port", "0", *arguments])


def find_ready_address(server: Child) -> str | None:
    """Return the address in a server's ready line, None before the server prints the line."""
    for line in server.output.read_text(errors="replace").splitlines():
        if line.startswith(_READY):
            return line.rpartition("=")[2]
    return None
