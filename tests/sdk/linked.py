"""A consumer for tests that ends without a word to anybody, as programs do."""

from __future__ import annotations

import sys
from pathlib import Path

from poisonguard.server.connection import Link
from poisonguard.server.counters import CounterKey
from tests.sdk.failures import confirmation
from tests.sdk.server import KEY


def main(url: str, folder: str | None = None) -> None:
    link = Link.shared([url], KEY, spool=Path(folder) if folder else None)
    link.skip_list(topic="orders", consumer_group="billing", handler_version=None)
    link.start(20)
    link.reporter.count(CounterKey("orders", "billing", "billing-1"), handled=3)
    link.reporter.confirm(confirmation("redrive.1"))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
