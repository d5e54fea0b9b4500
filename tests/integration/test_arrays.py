"""Arrays that we format ourselves, read back by Postgres."""

from __future__ import annotations

import pytest
from django.db import connection

from apps.core.arrays import bytes_array, text_array

TEXTS = [
    "",
    "NULL",
    "null",
    "plain",
    '"',
    "\\",
    '\\"',
    "a,b",
    "{}",
    " \n\t",
    "'",
    "é%s",
]


@pytest.mark.django_db
@pytest.mark.parametrize("texts", [[], TEXTS, *([text] for text in TEXTS)])
def test_texts_are_the_same_after_postgres_read_them(texts: list[str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::text[]", [text_array(texts)])

        assert cursor.fetchone() == (texts,)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "values", [[], [b""], [None], [b"NULL", None, bytes(range(256))]]
)
def test_bytes_and_nulls_are_the_same_after_postgres_read_them(
    values: list[bytes | None],
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::bytea[]", [bytes_array(values)])

        (read,) = cursor.fetchone()
    assert [value and bytes(value) for value in read] == values
