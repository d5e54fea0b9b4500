"""Text that Postgres and a page can hold, derived from text that they cannot."""

from __future__ import annotations

import unicodedata

OURS = "poisonweb"
# As actors and as sentences of the trail begin, written small.
SAID_BY_US = (f"{OURS} (", "system:", "user:", "key:", "the key ", "a sign-in as ")
NUL_PICTURE = "\N{SYMBOL FOR NULL}"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def storable(text: str, *, limit: int | None = None) -> str:
    """Replace what a Postgres text column refuses: NUL and lone surrogates."""
    clean = text.replace("\0", NUL_PICTURE)
    clean = clean.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return clean if limit is None else clean[:limit]


def readable(value: bytes) -> str:
    return storable(bytes(value).decode("utf-8", "replace"))


def speaks_as_system(name: str) -> bool:
    """Check whether a sentence of the trail that begins with it would seem ours."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    return plain == OURS or plain.startswith(SAID_BY_US)


def is_name(text: str, *, limit: int) -> bool:
    """Check that people can see and tell apart what they would call by this name.

    Nothing in it is invisible, turns the text around or ends a line, and it neither
    begins nor ends with a blank.
    """
    return 0 < len(text) <= limit and text.isprintable() and text == text.strip()


def one_line(text: str, *, limit: int = 300) -> str:
    return " ".join(storable(text[: limit * 4]).split())[:limit]
