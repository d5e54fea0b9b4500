"""Read the answers of the server: JSON, lines and streams, or why one is missing."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterator
from typing import Any

import urllib3

from poisonguard.errors import Away

log = logging.getLogger(__name__)

# The limit of a streamed answer: room for a million skips.
MOST_INFLATED = 1024 * 1024 * 1024
_PIECE = 65_536


class StreamedAnswer:
    """An answer that is read as it arrives, by lines, or whole as JSON."""

    def __init__(self, url: str, response: urllib3.BaseHTTPResponse) -> None:
        self._url = url
        self._response = response
        header = response.headers.get("Content-Type", "")
        self.media_type = header.partition(";")[0].strip().lower()

    def json(self) -> Any:
        """Read the rest of Poisonweb's answer and parse it.

        Raise Away if it is cut, or no JSON.
        """
        return read_json(self._url, self._response)

    def lines(self, *, longest: int) -> Iterator[bytes]:
        """Yield the lines of Poisonweb's answer as they arrive, without their ends.

        Raise Away for a line of more than `longest` bytes, and for a cut answer.
        """
        try:
            yield from _lines(_inflated(self._response), longest)
        except (urllib3.exceptions.HTTPError, zlib.error, _Excess) as reason:
            raise away(self._url, reason) from reason


class _Excess(Exception):
    """An answer is larger than Poisonweb's answers can be."""


def read_json(url: str, response: urllib3.BaseHTTPResponse) -> Any:
    """Read and parse Poisonweb's answer; raise Away if it is cut, or no JSON."""
    try:
        return json.loads(response.data)
    except urllib3.exceptions.HTTPError as reason:
        raise away(url, reason) from reason
    except (ValueError, RecursionError):
        raise Away(
            f"{url} answers with something that is no JSON:"
            " is it Poisonweb, and nothing in between that answers for it?"
        ) from None


def pieces_of(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield the bytes of Poisonweb's answer as they arrive.

    A cut ends it like the server's end.
    """
    try:
        while piece := response.read1(_PIECE):
            yield piece
    except urllib3.exceptions.HTTPError as reason:
        log.debug("the stream broke: %s", reason)


def away(url: str, reason: Exception) -> Away:
    """Build the Away for a Poisonweb url without a usable answer, with the remedy."""
    return Away(
        f"{url} is away ({reason}): check that it runs, its name, its certificate and"
        " the way to it."
    )


def _inflated(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield the inflated body of Poisonweb's answer in pieces of bounded size."""
    pieces, total = response.stream(_PIECE, decode_content=False), 0
    if response.headers.get("Content-Encoding", "").strip().lower() == "gzip":
        pieces = _gunzipped(pieces)
    for piece in pieces:
        total += len(piece)
        if total > MOST_INFLATED:
            raise _Excess(f"its answer has more than {MOST_INFLATED} bytes")
        yield piece


def _gunzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield gunzipped pieces of Poisonweb's answer, never much of it at once."""
    inflating = zlib.decompressobj(wbits=31)
    for piece in pieces:
        rest = piece
        while rest:
            yield inflating.decompress(rest, _PIECE)
            rest = inflating.unconsumed_tail


def _lines(pieces: Iterator[bytes], longest: int) -> Iterator[bytes]:
    """Yield whole lines from the pieces of Poisonweb's answer; drop an unended one."""
    begun: list[bytes] = []  # the parts of the line without an end so far
    size = 0
    for piece in pieces:
        *whole, rest = piece.split(b"\n")
        for part in whole:
            yield b"".join([*begun, part])
            begun, size = [], 0
        begun.append(rest)
        size += len(rest)
        if size > longest:
            raise _Excess(f"its answer has a line of more than {longest} bytes")
