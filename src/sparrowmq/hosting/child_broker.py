"""`python -m sparrowmq.hosting.child_broker`: a process that `broker_processes` starts.

Tests: test_broker_processes.py.
"""

from __future__ import annotations

import sys

from sparrowmq.hosting.servers import read_order, run_ordered

if __name__ == "__main__":
    sys.exit(run_ordered(read_order(sys.stdin.readline())))
