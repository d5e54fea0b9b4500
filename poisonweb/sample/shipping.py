"""`python -m poisonweb.sample.shipping`: labels for shipments, until SIGTERM or Ctrl-C.

The library that prints the labels ends the process at some addresses. So this is a
program of its own, run by `python -m poisonguard run`: it dies alone, restarts within a
moment, and its guard knows which message killed it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from apps.core.stop_event import StopEvent
from poisonweb.env import BadEnvironment
from poisonweb.sample.consumer import SampleConsumer
from poisonweb.sample.consumers_and_their_topics import DISPATCH
from poisonweb.sample.sample_context import SampleContext

ABORTED = 134
LAST_OF_PLANE_0 = "\uffff"


class Labels:
    """Print a label for every shipment, with the library of the printer's vendor."""

    version = "1"

    def handle(self, body: bytes) -> None:
        """Pretend to print a made-up shipment's label.

        It ends the process at some addresses, as a faulty library would.
        """
        _print_label(json.loads(body)["to"])


def _print_label(address: str) -> None:
    """Imitate a label library that aborts at characters which do not fit two bytes."""
    if any(character > LAST_OF_PLANE_0 for character in address):
        os._exit(ABORTED)


def main() -> int:
    """Consume the sample's shipments until a signal; return 1 and print why not."""
    try:
        context = SampleContext.of(os.environ)
    except BadEnvironment as problem:
        sys.stderr.write(f"poisonweb.sample.shipping: {problem}\n")
        return 1
    stop = StopEvent()

    def request_stop(*_: Any) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, request_stop)
    SampleConsumer(
        context.redis,
        DISPATCH,
        Labels(),
        guards=context.guards,
        ledger=context.ledger,
        stop=stop,
    ).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
