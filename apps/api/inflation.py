"""Request bodies, inflated piece by piece: a bomb is stopped before it has gone off."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import IO, Protocol, cast

import zstandard

from apps.api.refusals import TooLarge, UnknownEncoding, Unreadable

PIECE = 64 * 1024
# Reports of one failure are alike and shrink well; beyond this, only bombs do so more.
RATIO = 200
RATIO_COUNTS_FROM = 8 * 1024 * 1024
# What RFC 9659 lets a sender of `zstd` use.
ZSTD_WINDOW = 8 * 1024 * 1024


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Counted:
    """A stream that knows how much was taken from it."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.taken = 0

    def read(self, size: int = PIECE, /) -> bytes:
        piece = self._stream.read(size)
        self.taken += len(piece)
        return piece


def inflated(stream: Readable, *, encoding: str, limit: int) -> bytearray:
    """Read a body to its end; raises TooLarge as soon as it would exceed the limit."""
    decode = DECODERS.get(encoding.strip().lower())
    if decode is None:
        known = ", ".join(name for name in DECODERS if name)
        raise UnknownEncoding(f"Content-Encoding: use one of {known}, or none.")
    source, whole = Counted(stream), bytearray()
    try:
        for piece in decode(source):
            whole += piece
            _check(len(whole), source.taken, limit)
    except (zlib.error, zstandard.ZstdError) as broken:
        raise Unreadable(f"The body is not whole {encoding}: {broken}") from None
    return whole


def _check(size: int, taken: int, limit: int) -> None:
    if max(size, taken) > limit:
        raise TooLarge(
            f"The body has more than {limit} bytes: send fewer members at a time, or"
            " raise POISONWEB_REQUEST_LIMIT."
        )
    if size > RATIO_COUNTS_FROM and size > taken * RATIO:
        raise TooLarge(
            f"The body inflates more than {RATIO}-fold: send fewer members at a time,"
            " or send them as they are."
        )


def _plain(source: Counted) -> Iterator[bytes]:
    while piece := source.read():
        yield piece


def _gzip(source: Counted) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    while not inflater.eof:
        given = inflater.unconsumed_tail or source.read()
        piece = inflater.decompress(given, PIECE)
        if not given and not piece:
            raise zlib.error("it ends too early")
        yield piece


def _zstd(source: Counted) -> Iterator[bytes]:
    inflater = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    # It asks for a whole file and uses only its read().
    file = cast("IO[bytes]", source)
    with inflater.stream_reader(file, read_size=PIECE) as reader:
        while piece := reader.read(PIECE):
            yield piece


DECODERS: dict[str, Callable[[Counted], Iterator[bytes]]] = {
    "": _plain,
    "identity": _plain,
    "gzip": _gzip,
    "zstd": _zstd,
}
