"""A gateway that ends before it served: its threads do not keep its process."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from apps.redelivery.gateway.database_threads import GatewayDatabaseThreads
GatewayDatabaseThreads(1)
"""


def test_waiting_threads_end_with_their_process() -> None:
    subprocess.run((sys.executable, "-c", SCRIPT), check=True, timeout=60)
