"""`python -m poisonweb.sample`: run the demo until SIGTERM or Ctrl-C.

SIGUSR1 stops the producer for good; the consumers go on. The consumer of shipments is a
program of its own, `poisonweb.sample.shipping`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

from apps.core.stop_event import StopEvent
from poisonweb.env import BadEnvironment
from poisonweb.sample.consumer import Consumer
from poisonweb.sample.handlers import Billing, Payments, Superstitious
from poisonweb.sample.place import Place
from poisonweb.sample.producer import Producer
from poisonweb.sample.subscriptions import BILLING, CONTENT

STOP_SECONDS = 1.5


class Part(Protocol):
    def run(self) -> None:
        """Work until told to stop."""


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    try:
        place = Place.of(os.environ)
    except BadEnvironment as problem:
        sys.stderr.write(f"poisonweb.sample: {problem}\n")
        return 1
    stop = StopEvent()
    return _run(_parts(options, place=place, stop=stop), stop)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m poisonweb.sample", description="Sample traffic for Poisonweb."
    )
    parser.add_argument(
        "--rate", type=float, default=3.0, help="messages a second (%(default)s)"
    )
    parser.add_argument(
        "--release-after",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="age at which billing gets its new release (%(default)s)",
    )
    return parser.parse_args(arguments)


def _parts(
    options: argparse.Namespace, *, place: Place, stop: threading.Event
) -> list[Part]:
    # The age counts from the first start of all: a restart takes no release back.
    began = place.ledger.began() or datetime.now(UTC)

    def age() -> timedelta:
        return datetime.now(UTC) - began

    billing = Billing(
        payments=Payments(age),
        age=age,
        release_after=timedelta(seconds=options.release_after),
    )
    producer = Producer(place.redis, place.ledger, rate=options.rate, stop=stop)
    signal.signal(signal.SIGUSR1, lambda *_: producer.pause())
    consumer = partial(
        Consumer, place.redis, guards=place.guards, ledger=place.ledger, stop=stop
    )
    return [producer, consumer(CONTENT, Superstitious()), consumer(BILLING, billing)]


def _run(parts: Sequence[Part], stop: threading.Event) -> int:
    """Run all of them until one ends or somebody asks to stop."""
    is_asked = False

    def ask(*_: object) -> None:
        nonlocal is_asked
        is_asked = True
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
    threads = [
        threading.Thread(target=_until_the_end, args=(part, stop), daemon=True)
        for part in parts
    ]
    for thread in threads:
        thread.start()
    stop.wait()
    deadline = time.monotonic() + STOP_SECONDS
    for thread in threads:
        # Who waits for a server that hangs is left behind: nothing is lost by it.
        thread.join(max(0.0, deadline - time.monotonic()))
    return 0 if is_asked else 1


def _until_the_end(part: Part, stop: threading.Event) -> None:
    try:
        part.run()
    finally:
        # One that died of an error takes all down, to be started again together.
        stop.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
