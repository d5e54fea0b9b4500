"""A consumer of a topic that replays, with the SDK that PYTHONPATH leads to.

    python replaying_consumer.py URL API_KEY CLIENT_NAME LAST

It reads the messages from 1 to LAST, of which every 13th fails, and prints what became
of those that it had not settled before.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from poisonguard import BookmarkStore, Guard, RetryPolicy
from poisonguard.readers.plain import PlainReader

TOPIC = "replayed"
SUB_ID, PUBLISHER = "eu", "p"
UNLUCKY = 13


def handle(message: dict[str, Any]) -> None:
    if message["seq"] % UNLUCKY == 0:
        raise ValueError("I'm superstitious")


def main(url: str, key: str, client_name: str, last: str) -> None:
    guard = Guard(
        topic=TOPIC,
        consumer_group="billing",
        client_name=client_name,
        url=url,
        api_key=key,
        journal=None,
        reader=PlainReader(seq="seq", replays=True),
        policy=RetryPolicy(max_attempts=1),
    )
    outcomes = dict[int, str]()
    with BookmarkStore(url, key, client_name=client_name) as store, guard:
        store.open(SUB_ID, TOPIC)
        for number in range(1, int(last) + 1):
            place = (SUB_ID, PUBLISHER, number)
            if store.is_settled(*place):
                continue
            store.received(*place)
            message = {"bookmark": f"p|{number}|", "seq": number, "body": b"{}"}
            outcome = guard.handle(message, handle)
            outcomes[number] = outcome.name.lower()
            if outcome.settles:
                store.settle(*place)
    sys.stdout.write(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
