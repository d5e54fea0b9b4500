"""Arrays of texts and bytes as literals of Postgres, to be cast in a statement.

psycopg looks at each element of a list: for the names of a window that takes longer
than the statement they belong to.
"""

from __future__ import annotations

from collections.abc import Iterable


def text_array(texts: Iterable[str]) -> str:
    """Return texts as a Postgres literal of text[]."""
    return _array(text.replace("\\", r"\\").replace('"', r"\"") for text in texts)


def bytea_array(values: Iterable[bytes]) -> str:
    """Return byte strings as a Postgres literal of bytea[]."""
    return _array(rf"\\x{value.hex()}" for value in values)


def _array(escaped: Iterable[str]) -> str:
    return "{" + ",".join(f'"{element}"' for element in escaped) + "}"
