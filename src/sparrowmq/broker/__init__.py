"""The broker: machines that decide what a request does, and the server that carries it out."""

from __future__ import annotations
