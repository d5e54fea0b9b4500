"""`python -m poisonweb.sample.shipping`: labels for shipments, until SIGTERM or Ctrl-C.

The library that prints them ends the process at some addresses. So this is a program of
its own, to be run by `python -m poisonguard run`: it dies without taking anybody along,
is back within a moment, and its guard knows which message it died of.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from apps.core.stop_event import StopEvent
from poisonweb.env import BadEnvironment
from poisonweb.sample.consumer import Consumer
from poisonweb.sample.place import Place
from poisonweb.sample.subscriptions import DISPATCH

ABORTED = 134
LAST_OF_PLANE_0 = "\uffff"


class Labels:
    """Print a label for each shipment, with the library of the printer's maker."""

    version = "1"

    def handle(self, body: bytes) -> None:
        _print(json.loads(body)["to"])


def _print(address: str) -> None:
    """Do what that library does: it counts two bytes for each character, and aborts."""
    if any(character > LAST_OF_PLANE_0 for character in address):
        os._exit(ABORTED)


def main() -> int:
    try:
        place = Place.of(os.environ)
    except BadEnvironment as problem:
        sys.stderr.write(f"poisonweb.sample.shipping: {problem}\n")
        return 1
    stop = StopEvent()

    def ask(*_: Any) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
    Consumer(
        place.redis,
        DISPATCH,
        Labels(),
        guards=place.guards,
        ledger=place.ledger,
        stop=stop,
    ).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
