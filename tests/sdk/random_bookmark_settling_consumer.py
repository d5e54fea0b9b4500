"""A consumer that settles at random, as a process of its own to be killed.

    random_bookmark_settling_consumer.py URL LOG MESSAGES IN_FLIGHT HOLE

It reads the numbers 1 to MESSAGES of a replaying topic from where it may resume, keeps
IN_FLIGHT of them unsettled and settles one of those at random, but HOLE never.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

from poisonguard.bookmarks import BookmarkStore
from poisonguard.errors import Away
from tests.sdk.fake_poisonweb_server import KEY
from tests.sdk.killed_consumer_logs import FLUSHED, Log

PLACE = ("eu", "p")
FLUSH_EVERY = 5_000


def main(url: str, path: str, messages: int, in_flight: int, hole: int) -> None:
    log = Log(path)
    with BookmarkStore(url, KEY, client_name="billing-1", interval=0.05) as store:
        resume = store.open("eu", "orders").positions.get("p") or 0
        numbers = _received(store, resume, messages)
        for count, seq in enumerate(_at_random(numbers, in_flight), start=1):
            if seq != hole:
                log.write(seq)
                store.settle(*PLACE, seq)
            if count % FLUSH_EVERY == 0 and _flush(store):
                log.write(FLUSHED)
        while not _flush(store):
            pass


def _flush(store: BookmarkStore) -> bool:
    """Write settled positions; tell whether the server, perhaps busy, has them."""
    try:
        store.flush()
    except Away:
        return False
    return True


def _received(store: BookmarkStore, resume: int, messages: int) -> Iterator[int]:
    for seq in range(resume + 1, messages + 1):
        if not store.is_settled(*PLACE, seq):
            store.received(*PLACE, seq)
            yield seq


def _at_random(numbers: Iterator[int], in_flight: int) -> Iterator[int]:
    window: list[int] = []
    for number in numbers:
        window.append(number)
        if len(window) == in_flight:
            place = random.randrange(in_flight)
            window[place], window[-1] = window[-1], window[place]
            yield window.pop()
    random.shuffle(window)
    yield from window


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
