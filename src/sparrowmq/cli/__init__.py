"""The command line: `sparrowmq`, its servers, its tools for groups and jobs, and the demo."""

from __future__ import annotations
