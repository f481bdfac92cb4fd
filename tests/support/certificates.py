"""Certificates for tests, made by the openssl command and valid for two days."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


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
        self, name: str, *, san: str = "IP:127.0.0.1,DNS:localhost", days: int = 2
    ) -> Certificate:
        """Return a certificate that `ca` has signed; -1 days are one that has expired."""
        made = self._files(name)
        request = self._directory / f"{name}.csr"
        extensions = self._directory / f"{name}.ext"
        extensions.write_text(f"subjectAltName={san}\n")
        self._openssl("req", "-new", *_KEY, "-keyout", made.key, "-out", request, *_subject(name))
        self._openssl(
            *("x509", "-req", "-in", request, "-CA", self.ca.path, "-CAkey", self.ca.key),
            *("-CAcreateserial", "-days", days, "-extfile", extensions, "-out", made.path),
        )
        return made

    def _self_signed(self, name: str) -> Certificate:
        made = self._files(name)
        files = ("-keyout", made.key, "-out", made.path)
        self._openssl("req", "-x509", *_KEY, *files, "-days", 2, *_subject(name))
        return made

    def _files(self, name: str) -> Certificate:
        return Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")

    def _openssl(self, *arguments: object) -> None:
        command = ["openssl", *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0, result.stderr


def _subject(name: str) -> tuple[str, str]:
    return ("-subj", f"/CN=sparrowmq test {name}")
