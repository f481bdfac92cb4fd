"""The broker: machines that handle requests, and the server that performs their outputs."""

from __future__ import annotations
