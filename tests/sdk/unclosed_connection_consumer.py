"""A consumer for tests that ends without closing its connection.

    python -m tests.sdk.unclosed_connection_consumer URL SECONDS [SPOOL]

At its end it may send for so many seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from poisonguard.server import threads_shared_by_guards
from poisonguard.server.counts_by_minute import CounterKey
from poisonguard.server.threads_shared_by_guards import Connection
from tests.sdk.failure_report_builder import confirmation
from tests.sdk.fake_poisonweb_server import KEY


def main(url: str, seconds: str, folder: str | None = None) -> None:
    threads_shared_by_guards.EXIT_TIMEOUT = float(seconds)
    connection = Connection.shared([url], KEY, spool=Path(folder) if folder else None)
    connection.skip_list(topic="orders", consumer_group="billing", handler_version=None)
    connection.start(60)
    connection.reporter.count(CounterKey("orders", "billing", "billing-1"), handled=3)
    connection.reporter.confirm(confirmation("redrive.1"))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
