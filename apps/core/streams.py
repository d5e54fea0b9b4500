"""Bytes that leave as they are read, so that no answer is held in memory whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.http import HttpRequest


def flowing(
    request: HttpRequest, chunks: Iterator[bytes]
) -> Iterator[bytes] | AsyncIterator[bytes]:
    """Give the chunks in the kind of iterator that this server can pass on."""
    # Under ASGI Django would first gather what a plain iterator gives, all of it.
    return _apart(chunks) if hasattr(request, "scope") else chunks


async def _apart(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    while chunk := await sync_to_async(lambda: next(chunks, b""))():
        yield chunk
