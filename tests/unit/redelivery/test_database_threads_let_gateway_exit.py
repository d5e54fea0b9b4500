"""Idle database threads let the gateway's process exit, also before it served."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from apps.redelivery.gateway.database_threads import GatewayDatabaseThreads
GatewayDatabaseThreads(1)
"""


def test_waiting_threads_end_with_their_process() -> None:
    subprocess.run((sys.executable, "-c", SCRIPT), check=True, timeout=60)
