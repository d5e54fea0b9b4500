"""Show a message body as JSON, text or hex; the bytes themselves never change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

# The hex view stops early: it is eight times as long as the text.
HEX_BYTES = 8_192
DEEPEST = 100
OPENING, CLOSING = ("{", "["), ("}", "]")
SIGNS = (*CLOSING, ",", ":")
# An unterminated string runs to the end of the text: searching again from each
# quotation mark would take more than linear time.
_TOKEN = re.compile(r'"(?>(?:[^"\\]++|\\.)*)"?|[^\s"{}\[\],:]+|[{}\[\],:]', re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class BodyView:
    shown_bytes: int
    truncated: bool
    pretty: str | None
    text: str | None
    hex: str
    why: str  # why it is not shown as text or JSON; "" if it is


def view(head: bytes, *, size: int) -> BodyView:
    """Render the start of a message's body as hex, as text, and a whole one as JSON."""
    truncated = len(head) < size
    text, why = _utf8_text(head, truncated=truncated)
    pretty = None
    if text and not truncated:
        pretty, why = _pretty(text)
    return BodyView(
        shown_bytes=len(head),
        truncated=truncated,
        pretty=pretty,
        text=text,
        hex=hexdump(head[:HEX_BYTES]),
        why=why,
    )


def hexdump(content: bytes) -> str:
    """Format a body's bytes as rows of 16: offset, hex and printable ASCII."""
    rows = range(0, len(content), 16)
    return "\n".join(_hex_row(at, content[at : at + 16]) for at in rows)


def _hex_row(at: int, chunk: bytes) -> str:
    """Format the row of a hex dump that begins at offset `at`."""
    text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in chunk)
    return f"{at:08x}  {chunk.hex(' '):<47}  {text}"


def _utf8_text(head: bytes, *, truncated: bool) -> tuple[str | None, str]:
    """Decode the start of a body as UTF-8; else return None and what is wrong."""
    try:
        return head.decode(), ""
    except UnicodeDecodeError as reason:
        # The cut may split the last character; that is no error of the body.
        if truncated and reason.start > len(head) - 4:
            return head[: reason.start].decode(), ""
        return None, f"not UTF-8 at byte {reason.start:,}"


def _pretty(text: str) -> tuple[str | None, str]:
    """Indent a body's JSON token by token; numbers and escapes stay as written.

    Returns None and the reason for a body that is not JSON, or is nested too deeply.
    """
    tokens = _TOKEN.findall(text)
    if _depth(tokens) > DEEPEST:
        return None, f"nested deeper than {DEEPEST}"
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except ValueError:
        return None, "not JSON"
    return "".join(_indented(tokens)), ""


def _depth(tokens: list[str]) -> int:
    """Return how deeply a body's JSON tokens are nested."""
    depth = deepest = 0
    for token in tokens:
        depth += (token in OPENING) - (token in CLOSING)
        deepest = max(deepest, depth)
    return deepest


def _indented(tokens: list[str]) -> Iterator[str]:
    """Yield a body's JSON tokens with line breaks and indentation between them."""
    depth = 0
    for token, after in pairwise([*tokens, ""]):
        if token in OPENING:
            depth += after not in CLOSING
            yield token if after in CLOSING else token + _line_break(depth)
        elif after in CLOSING:
            depth -= 1
            yield token + _line_break(depth)
        elif token in SIGNS:
            yield {",": "," + _line_break(depth), ":": ": "}.get(token, token)
        else:
            yield token


def _line_break(depth: int) -> str:
    """Return a line break and the indentation of JSON that is nested this deep."""
    return "\n" + "  " * depth
