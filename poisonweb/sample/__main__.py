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
from poisonguard.outbox.publishers.redis_streams import RedisStreamsPublisher
from poisonweb.env import BadEnvironment
from poisonweb.sample.consumer import SampleConsumer
from poisonweb.sample.consumers_and_their_topics import BILLING, CONTENT
from poisonweb.sample.handlers import Billing, Payments, Superstitious
from poisonweb.sample.producer import Producer
from poisonweb.sample.sample_context import SampleContext
from poisonweb.sample.shop_with_outbox import Shop
from poisonweb.sample.stock_quote_client import StockQuoteClient, calls_to
from poisonweb.sample.stock_quote_service import StockQuoteService

STOP_SECONDS = 1.5


class Part(Protocol):
    def run(self) -> None:
        """Run a made-up producer, consumer or shop of the sample until its `stop`."""


def main(arguments: Sequence[str]) -> int:
    """Run the sample's programs; return 1 with a line that says why it cannot."""
    options = _options(arguments)
    try:
        context = SampleContext.of(os.environ)
    except BadEnvironment as problem:
        sys.stderr.write(f"poisonweb.sample: {problem}\n")
        return 1
    stop = StopEvent()
    return _run(_parts(options, context=context, stop=stop), stop)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line of the sample's programs."""
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
    parser.add_argument(
        "--quote-port", type=int, help="where stocks are quoted, if anywhere"
    )
    parser.add_argument(
        "--gateway-port", type=int, help="through which quotes are asked for"
    )
    return parser.parse_args(arguments)


def _parts(
    options: argparse.Namespace, *, context: SampleContext, stop: threading.Event
) -> list[Part]:
    """Build the sample's producer and consumers; SIGUSR1 stops the producer."""
    # The age counts from the very first start, so that a restart keeps the release.
    began = context.ledger.began() or datetime.now(UTC)

    def age() -> timedelta:
        return datetime.now(UTC) - began

    billing = Billing(
        payments=Payments(age),
        age=age,
        release_after=timedelta(seconds=options.release_after),
    )
    producer = Producer(context.redis, context.ledger, rate=options.rate, stop=stop)
    signal.signal(signal.SIGUSR1, lambda *_: producer.pause())
    consumer = partial(
        SampleConsumer,
        context.redis,
        guards=context.guards,
        ledger=context.ledger,
        stop=stop,
    )
    consumers = [consumer(CONTENT, Superstitious()), consumer(BILLING, billing)]
    return [
        producer,
        *consumers,
        *_quote_parts(options, context, stop),
        *_shop_parts(context, stop),
    ]


def _quote_parts(
    options: argparse.Namespace, context: SampleContext, stop: threading.Event
) -> list[Part]:
    """Build the stock quote service and its client, if the sample has their ports."""
    if options.quote_port is None or options.gateway_port is None:
        return []
    call = calls_to(options.gateway_port, context.guards.key_file)
    return [
        StockQuoteService(port=options.quote_port, stop=stop),
        StockQuoteClient(call, stop=stop),
    ]


def _shop_parts(context: SampleContext, stop: threading.Event) -> list[Part]:
    """Build the sample's shop, if it has a database."""
    if context.shop_url is None:
        return []
    publish = RedisStreamsPublisher(context.redis_url)
    return [Shop(context.shop_url, context.redis, publish, stop=stop)]


def _run(parts: Sequence[Part], stop: threading.Event) -> int:
    """Run all parts of the sample until one ends or a signal requests a stop."""
    is_stop_requested = False

    def request_stop(*_: object) -> None:
        nonlocal is_stop_requested
        is_stop_requested = True
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, request_stop)
    threads = [
        threading.Thread(target=_run_part, args=(part, stop), daemon=True)
        for part in parts
    ]
    for thread in threads:
        thread.start()
    stop.wait()
    deadline = time.monotonic() + STOP_SECONDS
    for thread in threads:
        # Do not wait for a part whose server hangs: nothing is lost.
        thread.join(max(0.0, deadline - time.monotonic()))
    return 0 if is_stop_requested else 1


def _run_part(part: Part, stop: threading.Event) -> None:
    """Run a part of the sample on its thread; its end stops all others."""
    try:
        part.run()
    finally:
        # If one part fails, all of them stop, to be restarted together.
        stop.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
