"""The query language: what it parses, and how it refuses the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core.errors import Invalid
from apps.poison.query_language import Query, Term


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("  is:open   topic:orders ", "is:open topic:orders"),
        ("!cause:crash", "!cause:crash"),
        ('error:"connection reset"', 'error:"connection reset"'),
        ("timeout", "error:timeout"),  # a bare word is searched in the error
        ('"two words"', 'error:"two words"'),
        (r'error:"a \"b\" c"', r'error:"a \"b\" c"'),
        ("topic:/sample/bookmarkStore", "topic:/sample/bookmarkStore"),
        ("topic:orders.*", "topic:orders.*"),
        ("problem:12,15", "problem:12,15"),
    ],
)
def test_reads_and_writes_one_canonical_spelling(text: str, canonical: str) -> None:
    assert str(Query.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("colour:red", "colour:"),
        ("is:lost", "is: takes one of open, sent, handled, dropped"),
        ("day:yesterday", "day: takes a date"),
        ("day:9999-12-31", "day:"),  # its end is past the last year there is
        ("problem:x", "problem: takes the number"),
        ("problem:1,,2", "problem: takes the number"),
        ("problem:99999999999999999999", "problem: takes the number"),
        ("cause:bad-luck", "cause: takes one of"),
        ('error:"open', "quotation mark"),
        ("topic:", "names nothing"),
        ("a\0b", "character"),
        ("a\ud800b", "character"),
        ("x " * 21, "20 terms"),
        ("x" * 2001, "2000 characters"),
    ],
)
def test_an_invalid_query_names_the_wrong_word(text: str, named: str) -> None:
    with pytest.raises(Invalid, match=named) as refusal:
        Query.parse(text)

    assert refusal.value.field == "q"


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        query = Query.parse(text)
    except Invalid:
        return
    assert Query.parse(str(query)) == query


@given(st.text(min_size=1, max_size=50).filter(lambda t: t.isprintable()))
def test_any_value_survives_its_quotes(value: str) -> None:
    term = Term("error", value)

    assert Query.parse(str(term)).terms == (term,)
