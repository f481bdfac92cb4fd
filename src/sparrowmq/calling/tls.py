"""TLS: the contexts, one connection's TLS without I/O, and the texts of its errors.

Users pass an `ssl.SSLContext` to clients. The command line, Spark and the servers make their
contexts here, from files. `TlsSession` turns bytes into bytes, for the blocking driver and the
servers; the async driver leaves TLS to its event loop.
"""

from __future__ import annotations

import os
import ssl
from typing import Final

from sparrowmq.errors import ConfigError

# The time from the connection to the end of the handshake.
HANDSHAKE_TIMEOUT_MS = 10_000
HANDSHAKE_TIMED_OUT = (
    f"no TLS handshake within {HANDSHAKE_TIMEOUT_MS} ms; the server may not speak TLS"
)
CLOSED_IN_HANDSHAKE = (
    "the server closed the connection during the TLS handshake; it may not speak TLS"
)
# The first byte of every TLS connection: a handshake record. A frame begins with 0 or 1.
HANDSHAKE_RECORD = 0x16
# A TLS record has at most 16 KiB.
_READ_BYTES = 16 * 1024

# X509_V_ERR_*: `ssl` names none of them.
_NOT_YET_VALID, _EXPIRED = 9, 10
_WRONG_HOST_CODES = frozenset({62, 64})
_MAX_REASON: Final = 200


def client_context(
    *,
    ca_file: str | os.PathLike[str] | None = None,
    certificate_file: str | os.PathLike[str] | None = None,
    key_file: str | os.PathLike[str] | None = None,
    check_hostname: bool = True,
) -> ssl.SSLContext:
    """Make a client's context: TLS 1.2 or later, the peer's certificate always checked.

    Args:
        ca_file: PEM certificates to trust; None for the system's.
        certificate_file: the client's PEM chain, for servers that ask for a certificate.
        key_file: the certificate's key; None if `certificate_file` contains it.
        check_hostname: whether the certificate must name the host of the connection. Clients
            connect to brokers by the addresses that the brokers register, mostly IP addresses.

    Raises: ConfigError that names the file.
    """
    context = _make_context(ssl.Purpose.SERVER_AUTH, ca_file)
    context.check_hostname = check_hostname
    if certificate_file is not None:
        _load_chain(context, certificate_file, key_file)
    return context


def server_context(
    certificate_file: str | os.PathLike[str],
    key_file: str | os.PathLike[str] | None = None,
    *,
    client_ca_file: str | os.PathLike[str] | None = None,
) -> ssl.SSLContext:
    """Make a server's context: TLS 1.2 or later.

    Args:
        certificate_file: the server's PEM chain.
        key_file: the certificate's key; None if `certificate_file` contains it.
        client_ca_file: PEM certificates, one of which must have signed each client's certificate.
            None asks clients for no certificate.

    Raises: ConfigError that names the file.
    """
    context = _make_context(ssl.Purpose.CLIENT_AUTH, client_ca_file)
    if client_ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    _load_chain(context, certificate_file, key_file)
    return context


def own_server_context(
    certificate_file: str | os.PathLike[str], key_file: str | os.PathLike[str] | None = None
) -> ssl.SSLContext:
    """Make a context for a client in the process of a server, with the server's certificate.

    The context trusts exactly this certificate, for any host, and presents it if a peer asks for
    one.

    Raises: ConfigError that names the file.
    """
    context = _make_context(ssl.Purpose.SERVER_AUTH, certificate_file)
    context.check_hostname = False
    # Trusting the certificate itself is enough; its issuer need not be known.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _load_chain(context, certificate_file, key_file)
    return context


def check_context(tls: object) -> ssl.SSLContext | None:
    """Check the user's `tls` and return it. Raises: ConfigError unless it is a context or None."""
    if tls is None or isinstance(tls, ssl.SSLContext):
        return tls
    # A text may be the password of a key.
    shown = "a text" if isinstance(tls, str) else repr(tls)
    raise ConfigError(
        f"tls is {shown}; give an ssl.SSLContext, such as "
        'ssl.create_default_context(cafile="ca.pem"), or None for no TLS'
    )


def _make_context(purpose: ssl.Purpose, ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(purpose, cafile=ca_file)
    except (OSError, ValueError) as error:
        raise _unreadable("CA file", ca_file, error) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _load_chain(
    context: ssl.SSLContext,
    certificate_file: str | os.PathLike[str],
    key_file: str | os.PathLike[str] | None,
) -> None:
    for name, path in (("certificate file", certificate_file), ("key file", key_file)):
        if path is not None and not os.path.isfile(path):
            raise ConfigError(f"TLS: {name} {os.fspath(path)!r} is not a file; check its path")
    try:
        # Without this function OpenSSL would ask for the password on the terminal.
        context.load_cert_chain(certificate_file, key_file, password=_refuse_password)
    except (OSError, ValueError) as error:
        what = f"certificate file {os.fspath(certificate_file)!r} with key"
        raise _unreadable(what, key_file or certificate_file, error) from error


def _refuse_password() -> str:
    raise ValueError("the key is encrypted; write it without a pass phrase, readable by you alone")


def _unreadable(what: str, path: str | os.PathLike[str] | None, error: Exception) -> ConfigError:
    reason = str(error)
    if isinstance(error, ssl.SSLError):
        reason = f"{error.reason or error}; PEM is needed, and the key must be the certificate's"
    elif isinstance(error, OSError):
        reason = error.strerror or reason
    shown = "" if path is None else f" {os.fspath(path)!r}"
    return ConfigError(f"TLS: {what}{shown} cannot be used: {reason}")


class TlsSession:
    """One connection's TLS: decrypts the peer's bytes and encrypts bytes for the peer.

    After each call `take_output` returns the bytes that must be sent to the peer.

    Args:
        context: the TLS context of the client or the server.
        server_hostname: the host that the client connects to; None at the server.
    """

    __slots__ = ("_incoming", "_outgoing", "_tls", "is_ended", "is_established")

    def __init__(self, context: ssl.SSLContext, *, server_hostname: str | None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
        )
        self.is_established = False
        # Whether the peer has announced that it sends no more.
        self.is_ended = False

    def receive_data(self, data: bytes) -> bytes:
        """Process the peer's bytes (b"" to begin as a client); return the decrypted bytes.

        Raises: ssl.SSLError; `describe` explains it.
        """
        if data:
            self._incoming.write(data)
        parts: list[bytes] = []
        try:
            if not self.is_established:
                self._tls.do_handshake()
                self.is_established = True
            while part := self._tls.read(_READ_BYTES):
                parts.append(part)
            self.is_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_ended = True
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def encrypt(self, data: bytes) -> None:
        """Encrypt bytes for the peer, once established. Raises: ssl.SSLError."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]

    def take_output(self) -> bytes:
        """Return the bytes to send to the peer, each once."""
        return self._outgoing.read()


def describe(error: Exception) -> str | None:
    """Return the meaning of a TLS error, with advice; None for another error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _describe_certificate(error)
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or str(error)[:_MAX_REASON]
    if reason in {
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "UNKNOWN_PROTOCOL",
        "PACKET_LENGTH_TOO_LONG",
    }:
        return "the peer does not speak TLS; enable TLS there, or connect without it"
    if "CERTIFICATE_REQUIRED" in reason or reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the server asks for a client certificate (TLS); give certificate and key"
    if "ALERT" in reason:
        return (
            f"the peer ended TLS ({reason}); it may not accept our certificate, or has no TLS "
            "version or cipher in common with us"
        )
    return f"TLS failed ({reason})"


def _describe_certificate(error: ssl.SSLCertVerificationError) -> str:
    said = error.verify_message
    if error.verify_code == _EXPIRED:
        return "the peer's certificate has expired; renew it, or set this machine's clock"
    if error.verify_code == _NOT_YET_VALID:
        return "the peer's certificate is not valid yet; look at both machines' clocks"
    if error.verify_code in _WRONG_HOST_CODES:
        return (
            f"the peer's certificate is for another host ({said.rstrip('.')}); connect by a "
            "name or address that it has, or make one that has this"
        )
    return f"the peer's certificate is not trusted ({said}); give the file of the CA that signed it"
