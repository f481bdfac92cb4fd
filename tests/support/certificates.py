"""Certificates for tests, made by the openssl command and valid for two days."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_CA_SETTINGS = """
[ca]
default_ca = here
[here]
database = {directory}/index.txt
new_certs_dir = {directory}
default_md = sha256
serial = {directory}/serial
unique_subject = no
policy = any
x509_extensions = extensions
[any]
commonName = supplied
[extensions]
subjectAltName = {san}
keyUsage = critical,digitalSignature
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


class Certificate(NamedTuple):
    """A certificate and its key, as PEM files."""

    path: Path
    key: Path


class Certificates:
    """An authority, and what it signs. Skips the test where openssl is missing."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not on the PATH")
        self._directory = directory
        self.ca = self._self_signed("ca")
        self.other_ca = self._self_signed("other-ca")
        self.server = self.issue("server")
        self.client = self.issue("client")

    def issue(
        self, name: str, *, san: str = "IP:127.0.0.1,DNS:localhost", has_expired: bool = False
    ) -> Certificate:
        """Return a certificate that `ca` has signed, as Python 3.13 and later check it."""
        made = self._files(name)
        request = self._directory / f"{name}.csr"
        settings = self._directory / f"{name}.cnf"
        settings.write_text(_CA_SETTINGS.format(directory=self._directory, san=san))
        (self._directory / "index.txt").touch()
        self._openssl("req", "-new", *_KEY, "-keyout", made.key, "-out", request, *_subject(name))
        # Only `ca` of every version of openssl signs for a time that has passed.
        self._openssl(
            *("ca", "-batch", "-notext", "-rand_serial", "-config", settings, "-in", request),
            *("-cert", self.ca.path, "-keyfile", self.ca.key, "-out", made.path),
            *(("-startdate", "20200101000000Z") if has_expired else ()),
            *(("-enddate", "20200102000000Z") if has_expired else ("-days", 2)),
        )
        return made

    def _self_signed(self, name: str) -> Certificate:
        made = self._files(name)
        files = ("-keyout", made.key, "-out", made.path)
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        self._openssl("req", "-x509", *_KEY, *files, *usage, "-days", 2, *_subject(name))
        return made

    def _files(self, name: str) -> Certificate:
        return Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")

    def _openssl(self, *arguments: object) -> None:
        command = ["openssl", *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0, result.stderr


def _subject(name: str) -> tuple[str, str]:
    return ("-subj", f"/CN=sparrowmq test {name}")
