"""The port of the gRPC service, where the extra `grpc` is installed.

Without `--grpc-port`, the service is an offer: its absence stops no broker.
Tests: grpc_service/test_server.py.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparrowmq.broker.server import BrokerServer
from sparrowmq.errors import ConfigError, install_command
from sparrowmq.hosting.settings import HostSettings
from sparrowmq.serving.access_control import AccessControl

if TYPE_CHECKING:
    import grpc

LOG = logging.getLogger("sparrowmq.hosting")

# ProxyConfig.grpcServerPort.
GRPC_PORT = 8081
_NO_PORT = -1
_PACKAGES = ("grpc", "google.protobuf")


def is_grpc_installed() -> bool:
    """Return whether the packages of the extra `grpc` are installed."""
    try:
        return all(find_spec(package) is not None for package in _PACKAGES)
    except ModuleNotFoundError:
        return False


@asynccontextmanager
async def serving_grpc(
    ip: str,
    settings: HostSettings,
    broker: BrokerServer,
    *,
    access: AccessControl | None,
    certificate: GrpcCertificate | None,
    timestamp_ms: Callable[[], int],
) -> AsyncGenerator[int | None]:
    """Serve gRPC clients; yield the port, None if there is none.

    Args:
        certificate: that of a service that speaks TLS alone; None for plain text.

    Raises: ConfigError if the extra is missing, OSError if the port is taken; both only for a port
        that was asked for.
    """
    wanted = settings.grpc_port
    if wanted == _NO_PORT or (wanted is None and not is_grpc_installed()):
        yield None
        return
    if not is_grpc_installed():
        raise ConfigError(f"--grpc-port {wanted} needs the extra grpc: {install_command('grpc')}")
    # Only here: the packages take a quarter of a second to load.
    from sparrowmq.grpc_service.server import GrpcServer

    server = GrpcServer(broker, access=access, timestamp_ms=timestamp_ms)
    port: int | None = None
    try:
        try:
            tls = None if certificate is None else certificate.credentials()
            port = await server.start(ip, GRPC_PORT if wanted is None else wanted, tls=tls)
        except OSError as error:
            if wanted is not None:
                raise
            LOG.warning("no gRPC clients are served: %s", error.strerror or error)
        yield port
    finally:
        await server.stop()


class GrpcCertificate:
    """The servers' certificate as gRPC takes it; a renewed one serves the next connections.

    Raises: OSError if a file cannot be read.
    """

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
        self._renewed: grpc.ServerCertificateConfiguration | None = None

    def renew(self, context: ssl.SSLContext) -> None:
        """Read the files again, which have made a context."""
        del context
        self._renewed = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """Return what gRPC serves by."""
        import grpc

        is_asked_for = bool(self._settings.tls_client_ca)
        return grpc.dynamic_ssl_server_credentials(
            self._read(), self._take_renewed, require_client_authentication=is_asked_for
        )

    def _take_renewed(self) -> Any:
        """Return a renewed certificate once; gRPC's threads ask at each new connection.

        None, which gRPC's types do not name, keeps the certificate.
        """
        renewed, self._renewed = self._renewed, None
        return renewed

    def _read(self) -> grpc.ServerCertificateConfiguration:
        import grpc

        settings = self._settings
        certificate = Path(settings.tls_cert).read_bytes()
        key = Path(settings.tls_key).read_bytes() if settings.tls_key else certificate
        trusted = Path(settings.tls_client_ca).read_bytes() if settings.tls_client_ca else None
        return grpc.ssl_server_certificate_configuration(
            [(key, certificate)], root_certificates=trusted
        )
