"""A consumer whose handler ends the process at the message 13, and after the last, 5.

python -m tests.amps.exiting_consumer AMPS_URL POISONWEB_URL [JOURNAL]

With a journal there is a guard behind it, and the process dies without a word.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import AMPS

from poisonguard import Guard
from poisonguard.amps import BookmarkStore, MisterYuck
from poisonguard.readers.amps import AmpsReader
from tests.sdk.fake_poisonweb_server import KEY


def main(url: str, poisonweb: str, journal: str | None = None) -> None:
    done = threading.Event()
    store = BookmarkStore(poisonweb, KEY, client_name="billing-1")
    client = AMPS.HAClient("billing-1", no_store=True)
    chooser = AMPS.DefaultServerChooser()
    chooser.add(url)
    client.set_server_chooser(chooser)
    client.set_bookmark_store(store)
    client.connect_and_logon()

    def handler(message: Any) -> None:
        number = json.loads(message.get_data())["id"]
        if number == 13:
            store.flush()
            if journal:
                os._exit(9)
            sys.exit(7)
        sys.stdout.write(f"{number}\n")
        client.discard(message)
        if number == 5:
            done.set()

    guard = Guard(
        topic="orders",
        consumer_group="billing",
        client_name="billing-1",
        url=poisonweb,
        api_key=KEY,
        reader=AmpsReader(),
        journal=journal,
    )
    behind = guard if journal else None
    with store, MisterYuck(client, handler, guard=behind) as protector:
        client.bookmark_subscribe(
            protector, "orders", AMPS.Client.Bookmarks.MOST_RECENT, sub_id="eu"
        )
        done.wait()
        client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
