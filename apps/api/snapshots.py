"""The whole list of a topic as bytes: made once for all who ask at the same revision.

Consumers that start at once wait for one of them, and what is held for the next is
bounded. A list in lines is held compressed; JSON is what it was for older consumers.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from rest_framework.utils.encoders import JSONEncoder

from apps.api.parameters.skips import Wanted
from apps.api.shapes import skips as shapes
from apps.poison import skip_reading
from poisonguard.skipping import skip_lines

MOST_BYTES = 128 * 1024 * 1024
MOST_LISTS = 256
# Fast, and a tenth of the size: what more effort would save takes longer than to send.
GZIP_LEVEL = 1

Revision = tuple[str, int]


@dataclass(slots=True)
class _Held:
    """One list in one form; the lock is for who makes it."""

    making: threading.Lock = field(default_factory=threading.Lock)
    revision: Revision | None = None
    body: bytes = b""


class Bodies:
    """What was made last of each list, as long as there is room."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[object, _Held] = OrderedDict()

    def get(self, key: object, revision: Revision, make: Callable[[], bytes]) -> bytes:
        """Give the body as of this revision or a later one; of many, one makes it."""
        with self._lock:
            held = self._held.setdefault(key, _Held())
            self._held.move_to_end(key)
        with held.making:
            if held.revision != revision:
                held.body, held.revision = make(), revision
            body = held.body
        self._let_go()
        return body

    def _let_go(self) -> None:
        """Forget what was asked for longest ago, where there is no room."""
        with self._lock:
            size = sum(len(held.body) for held in self._held.values())
            while self._held and (size > MOST_BYTES or len(self._held) > MOST_LISTS):
                _, held = self._held.popitem(last=False)
                size -= len(held.body)


_bodies = Bodies()


def as_json(wanted: Wanted) -> bytes:
    return _held("json", wanted, _json)


def as_lines(wanted: Wanted) -> bytes:
    """Give the list as gzipped lines (see `poisonguard.skipping.skip_lines`)."""
    return _held("lines", wanted, _gzipped_lines)


def _held(form: str, wanted: Wanted, make: Callable[[Wanted], bytes]) -> bytes:
    head = skip_reading.head(topic=wanted.topic)
    revision = head.epoch, head.revision
    return _bodies.get((form, wanted), revision, lambda: make(wanted))


def _json(wanted: Wanted) -> bytes:
    taken = skip_reading.snapshot(
        topic=wanted.topic, consumer_group=wanted.consumer_group
    )
    # In ASCII: a bookmark may hold what UTF-8 has no bytes for.
    return json.dumps(shapes.skips(taken), cls=JSONEncoder).encode()


def _gzipped_lines(wanted: Wanted) -> bytes:
    deflating = zlib.compressobj(GZIP_LEVEL, wbits=31)
    with skip_reading.rows(
        topic=wanted.topic, consumer_group=wanted.consumer_group
    ) as rows:
        lines = skip_lines.lines(
            epoch=rows.head.epoch,
            revision=rows.head.revision,
            skips=rows.in_force(),
            suspects=rows.suspected(),
        )
        pieces = [deflating.compress(line) for line in lines]
    return b"".join([*pieces, deflating.flush()])
