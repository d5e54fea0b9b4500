"""Cache the skip list of a topic as bytes: rendered once for each revision.

When many consumers start at once, one request renders the list and the others wait for
it. The cache is bounded. The list in lines is stored compressed; the list in JSON is
for older consumers.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from rest_framework.utils.encoders import JSONEncoder

from apps.api.response_dicts import message_skips as shapes
from apps.poison import skip_list_for_consumers
from poisonguard.skipping import skip_list_line_format

MOST_BYTES = 128 * 1024 * 1024
MOST_LISTS = 256
# Fast, and a tenth of the size: a higher level takes longer than it saves in sending.
GZIP_LEVEL = 1

Revision = tuple[str, int]


@dataclass(slots=True)
class _CachedList:
    """One list in one form; the lock is held while the list is rendered."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    revision: Revision | None = None
    body: bytes = b""


class ListCache:
    """The last rendering of each list; evicts the least recently used lists."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lists: OrderedDict[object, _CachedList] = OrderedDict()

    def get(
        self, key: object, revision: Revision, render: Callable[[], bytes]
    ) -> bytes:
        """Return the cached body of a skip list, of this revision or a later one.

        Where it is missing, one caller renders it, and the others wait.
        """
        with self._lock:
            entry = self._lists.setdefault(key, _CachedList())
            self._lists.move_to_end(key)
        with entry.lock:
            if entry.revision != revision:
                entry.body, entry.revision = render(), revision
            body = entry.body
        self._evict()
        return body

    def _evict(self) -> None:
        """Drop the least recently used skip lists until the cache is in its limits."""
        with self._lock:
            size = sum(len(entry.body) for entry in self._lists.values())
            while self._lists and (size > MOST_BYTES or len(self._lists) > MOST_LISTS):
                _, entry = self._lists.popitem(last=False)
                size -= len(entry.body)


_cache = ListCache()


def as_json(*, topic: str, consumer_group: str | None) -> bytes:
    """Return the current skip list as JSON, rendered once for each revision."""
    return _current_body("json", topic, consumer_group, _json)


def as_lines(*, topic: str, consumer_group: str | None) -> bytes:
    """Give the skip list as gzipped lines; see `skip_list_line_format` of the SDK."""
    return _current_body("lines", topic, consumer_group, _gzipped_lines)


def _current_body(
    form: str,
    topic: str,
    consumer_group: str | None,
    render: Callable[[str, str | None], bytes],
) -> bytes:
    """Return the current skip list as JSON or as lines, from the cache if possible."""
    head = skip_list_for_consumers.list_head(topic=topic)
    key, revision = (form, topic, consumer_group), (head.epoch, head.revision)
    return _cache.get(key, revision, lambda: render(topic, consumer_group))


def _json(topic: str, consumer_group: str | None) -> bytes:
    """Render the skip list as JSON."""
    snapshot = skip_list_for_consumers.snapshot(
        topic=topic, consumer_group=consumer_group
    )
    # In ASCII: a bookmark may hold surrogates, which UTF-8 cannot encode.
    return json.dumps(shapes.skip_list(snapshot), cls=JSONEncoder).encode()


def _gzipped_lines(topic: str, consumer_group: str | None) -> bytes:
    """Render the skip list as gzipped lines."""
    compressor = zlib.compressobj(GZIP_LEVEL, wbits=31)
    with skip_list_for_consumers.rows(
        topic=topic, consumer_group=consumer_group
    ) as rows:
        lines = skip_list_line_format.lines(
            epoch=rows.head.epoch,
            revision=rows.head.revision,
            skips=rows.in_force(),
            suspects=rows.suspected(),
        )
        pieces = [compressor.compress(line) for line in lines]
    return b"".join([*pieces, compressor.flush()])
