"""Clean text so that Postgres and pages accept it."""

from __future__ import annotations

import unicodedata

SYSTEM_NAME = "poisonweb"
# How actors and sentences of the audit trail begin, in lower case.
SYSTEM_PREFIXES = (
    f"{SYSTEM_NAME} (",
    "system:",
    "user:",
    "key:",
    "the key ",
    "a sign-in as ",
)
NUL_PICTURE = "\N{SYMBOL FOR NULL}"


def storable(text: str, *, limit: int | None = None) -> str:
    """Replace in a text what Postgres refuses: NUL and lone surrogates."""
    clean = text.replace("\0", NUL_PICTURE)
    clean = clean.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return clean if limit is None else clean[:limit]


def readable(value: bytes) -> str:
    """Decode UTF-8 for storage and pages; undecodable bytes are replaced."""
    return storable(bytes(value).decode("utf-8", "replace"))


def resembles_system_name(name: str) -> bool:
    """Tell whether the audit trail could take this name for one of Poisonweb's own."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    return plain == SYSTEM_NAME or plain.startswith(SYSTEM_PREFIXES)


def is_name(text: str, *, limit: int) -> bool:
    """Tell whether people can see all of a name.

    A name has no invisible characters, none that reverse the text or end a line, and no
    blanks at its ends.
    """
    return 0 < len(text) <= limit and text.isprintable() and text == text.strip()


def one_line(text: str, *, limit: int = 300) -> str:
    """Return a storable text on one line, cut to `limit` characters."""
    return " ".join(storable(text[: limit * 4]).split())[:limit]
