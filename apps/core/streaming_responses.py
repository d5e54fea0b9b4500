"""Stream responses, so that none is in memory as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.http import HttpRequest


def response_chunks(
    request: HttpRequest, chunks: Iterator[bytes]
) -> Iterator[bytes] | AsyncIterator[bytes]:
    """Return a response's chunks as an iterator that this server can stream."""
    # Under ASGI, Django would first collect all items of a synchronous iterator.
    return _in_threads(chunks) if hasattr(request, "scope") else chunks


async def _in_threads(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a response's chunks to an event loop, each computed in a thread."""
    while chunk := await sync_to_async(lambda: next(chunks, b""))():
        yield chunk
