"""Inflate request bodies piece by piece, and stop at a decompression bomb."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import IO, Protocol, cast

import zstandard

from apps.api.request_exceptions import TooLarge, UnknownEncoding, Unreadable

PIECE = 64 * 1024
# Reports of the same failure compress well, but only bombs beyond this ratio.
RATIO = 200
RATIO_COUNTS_FROM = 8 * 1024 * 1024
# The largest window that RFC 9659 allows a sender of `zstd`.
ZSTD_WINDOW = 8 * 1024 * 1024


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class CountingStream:
    """A stream that counts the bytes read from it."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.bytes_read = 0

    def read(self, size: int = PIECE, /) -> bytes:
        """Read a piece of a request's body, and count its bytes."""
        piece = self._stream.read(size)
        self.bytes_read += len(piece)
        return piece


def inflate(stream: Readable, *, encoding: str, limit: int) -> bytearray:
    """Inflate a request's body and return it; raises TooLarge as soon as it is that.

    Raises UnknownEncoding for another encoding, and Unreadable for invalid bytes.
    """
    decode = DECODERS.get(encoding.strip().lower())
    if decode is None:
        encodings = ", ".join(name for name in DECODERS if name)
        raise UnknownEncoding(f"Content-Encoding: use one of {encodings}, or none.")
    source, body = CountingStream(stream), bytearray()
    try:
        for piece in decode(source):
            body += piece
            _check(len(body), source.bytes_read, limit)
    except (zlib.error, zstandard.ZstdError) as error:
        raise Unreadable(f"The body is not valid {encoding}: {error}") from None
    return body


def _check(size: int, bytes_read: int, limit: int) -> None:
    """Raise TooLarge for a body above the limit, or that inflates too much."""
    if max(size, bytes_read) > limit:
        raise TooLarge(
            f"The body has more than {limit} bytes: send fewer members at a time, or"
            " raise POISONWEB_REQUEST_LIMIT."
        )
    if size > RATIO_COUNTS_FROM and size > bytes_read * RATIO:
        raise TooLarge(
            f"The body inflates more than {RATIO}-fold: send fewer members at a time,"
            " or send them as they are."
        )


def _plain(source: CountingStream) -> Iterator[bytes]:
    """Yield an uncompressed body in pieces, as it is."""
    while piece := source.read():
        yield piece


def _gzip(source: CountingStream) -> Iterator[bytes]:
    """Inflate a request's gzip body in pieces; raises zlib.error for an early end."""
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    while not inflater.eof:
        compressed = inflater.unconsumed_tail or source.read()
        piece = inflater.decompress(compressed, PIECE)
        if not compressed and not piece:
            raise zlib.error("it ends too early")
        yield piece


def _zstd(source: CountingStream) -> Iterator[bytes]:
    """Inflate a request's zstd body piece by piece, within a bounded window."""
    inflater = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    # stream_reader() is typed for a whole file but uses only its read().
    file = cast("IO[bytes]", source)
    with inflater.stream_reader(file, read_size=PIECE) as reader:
        while piece := reader.read(PIECE):
            yield piece


DECODERS: dict[str, Callable[[CountingStream], Iterator[bytes]]] = {
    "": _plain,
    "identity": _plain,
    "gzip": _gzip,
    "zstd": _zstd,
}
