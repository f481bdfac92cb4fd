"""The process that plans a stream beside the driver: `python -m sparrowmq.spark.planning_process`.

It does the work of `pyspark.sql.streaming.python_streaming_source_runner`. Spark waits ten seconds
for the connection and then without end; so this process connects first, and imports PySpark, which
takes most of its start, afterwards. `planning_start` starts it. Tests: test_local_session.py.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import BinaryIO, cast

_INT = struct.Struct(">i")
_BUFFER_BYTES = 65_536


def connect() -> BinaryIO:
    """Connect to the JVM that started this process, and name this process to it.

    Source: PySpark's `local_connect_and_auth` and `get_sock_file_to_executor`.
    Raises: OSError if the JVM does not take the connection.
    """
    environ = os.environ
    secret = environ.get("PYTHON_WORKER_FACTORY_SECRET")
    if secret is None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(environ["PYTHON_WORKER_FACTORY_SOCK_PATH"])
    else:
        is_ipv6 = environ.get("SPARK_PREFER_IPV6", "false").lower() == "true"
        address = "::1" if is_ipv6 else "127.0.0.1"
        port = int(environ["PYTHON_WORKER_FACTORY_PORT"])
        connection = socket.create_connection((address, port))
    stream = cast("BinaryIO", connection.makefile("rwb", _BUFFER_BYTES))
    if secret is not None:
        _write(stream, secret.encode())
        stream.flush()
        (size,) = _INT.unpack(stream.read(_INT.size))
        if stream.read(size) != b"ok":
            raise ConnectionRefusedError("Spark's JVM refused the secret of this process")
    stream.write(_INT.pack(os.getpid()))
    stream.flush()
    return stream


def _write(stream: BinaryIO, content: bytes) -> None:
    stream.write(_INT.pack(len(content)) + content)


def main() -> None:
    """Connect, then plan until Spark ends the process."""
    with connect() as stream:
        from pyspark.sql.streaming import python_streaming_source_runner

        python_streaming_source_runner.main(stream, stream)


if __name__ == "__main__":
    main()
