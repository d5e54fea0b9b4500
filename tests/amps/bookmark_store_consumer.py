"""A consumer with the real AMPS client, as a process of its own to be killed.

    python -m tests.amps.bookmark_store_consumer AMPS_URL POISONWEB_URL KEY LOG HOLE

It keeps up to 1,000 messages unsettled and discards them at random from a thread of its
own, but HOLE never.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import AMPS

from poisonguard.amps import BookmarkStore
from poisonguard.errors import Away
from tests.sdk.killed_consumer_logs import FLUSHED, Log

IN_FLIGHT = 1_000
FLUSH_EVERY = 1_000


def main(url: str, poisonweb: str, key: str, path: str, hole: str) -> None:
    log = Log(path)
    store = BookmarkStore(poisonweb, key, client_name="billing-1", interval=0.05)
    client = AMPS.HAClient("billing-1", no_store=True)
    chooser = AMPS.DefaultServerChooser()
    chooser.add(url)
    client.set_server_chooser(chooser)
    client.set_bookmark_store(store)
    client.connect_and_logon()
    received: SimpleQueue[Any] = SimpleQueue()
    client.bookmark_subscribe(
        # The client uses one message object for all of them.
        lambda message: received.put(copy.deepcopy(message)),
        *("orders", AMPS.Client.Bookmarks.MOST_RECENT, None, "eu"),
    )
    for count, message in enumerate(_at_random(received), start=1):
        number = json.loads(message.get_data())["id"]
        if number != int(hole):
            log.write(number)
            client.discard(message)
        if count % FLUSH_EVERY == 0:
            with suppress(Away):  # the server may be busy
                store.flush()
                log.write(FLUSHED)


def _at_random(received: SimpleQueue[Any]) -> Iterator[Any]:
    window: list[Any] = []
    with suppress(Empty):
        while True:
            while len(window) < IN_FLIGHT:
                window.append(received.get(timeout=0.5))
            yield window.pop(random.randrange(len(window)))
    while True:
        random.shuffle(window)
        yield from window
        window = [received.get()]


if __name__ == "__main__":
    main(*sys.argv[1:])
