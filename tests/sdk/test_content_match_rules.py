"""Rules: what they match, and that no message makes them raise."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poisonguard.contract import Invalid
from poisonguard.skipping import content_match_rules
from poisonguard.skipping.content_match_rules import (
    HeaderRule,
    PointerRule,
    canonical,
    from_canonical,
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=[]), max_size=20)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)


def pointer(where: str, equals: content_match_rules.Scalar) -> PointerRule:
    rule = content_match_rules.parse_rule({"pointer": where, "equals": equals})
    assert isinstance(rule, PointerRule)
    return rule


def header(name: str, equals: str) -> HeaderRule:
    rule = content_match_rules.parse_rule({"header": name, "equals": equals})
    assert isinstance(rule, HeaderRule)
    return rule


def at(where: str, equals: content_match_rules.Scalar, body: str | bytes) -> bool:
    raw = body if isinstance(body, bytes) else body.encode()
    return pointer(where, equals).matches(body=raw)


@pytest.mark.parametrize(
    ("where", "equals"),
    [
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
        ("/m~0n~01", 9),
    ],
)
def test_the_examples_of_the_rfc_lead_where_they_should(
    where: str, equals: content_match_rules.Scalar
) -> None:
    document = {
        "foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4,
        "i\\j": 5, 'k"l': 6, " ": 7, "m~n": 8, "m~n~1": 9,
    }  # fmt: skip

    assert at(where, equals, json.dumps(document))


@pytest.mark.parametrize(
    "where", ["/foo/2", "/foo/-", "/foo/00", "/foo/+1", "/foo/x", "/foo/0/x", "/", "/a"]
)
def test_a_pointer_that_leads_nowhere_matches_nothing(where: str) -> None:
    document = '{"foo": ["bar", "baz"]}'

    assert not any(
        at(where, equals, document) for equals in (None, "bar", "", 0, False)
    )


def test_the_empty_pointer_is_the_whole_body() -> None:
    assert at("", "bad", '"bad"')
    assert at("", None, "null")
    assert not at("", None, '{"a": null}')


@pytest.mark.parametrize(
    ("equals", "same", "others"),
    [
        (1, ["1", "1.0", "1e0", "10e-1"], ["true", '"1"', "1.5", "-1", "null", "[1]"]),
        (0, ["0", "-0", "0.0", "-0.0"], ["false", '""', "null", "{}", "[]"]),
        (1.5, ["1.5", "15e-1"], ["1", "1.5000000001"]),
        (0.1, ["0.1", "1e-1", "0.1000000000000000055"], ["0.11"]),
        (2**53 + 1, ["9007199254740993"], ["9007199254740992", "9007199254740993.0"]),
        (True, ["true"], ["1", "false", '"true"', "null"]),
        (False, ["false"], ["0", "null", '""']),
        (None, ["null"], ["0", "false", '""', '"null"', "NaN"]),
        ("1", ['"1"'], ["1"]),
        ("\u00e9", ['"\u00e9"', '"\\u00e9"'], ['"e\u0301"', '"E\u0301"', '"\u00c9"']),
        ("\ud800", ['"\\ud800"'], ['"\\udc00"', '"?"']),
        ("NaN", ['"NaN"'], ["NaN", "Infinity", "-Infinity"]),
    ],
)
def test_scalars_are_equal_by_kind_and_value(
    equals: content_match_rules.Scalar, same: list[str], others: list[str]
) -> None:
    matches = [
        text for text in (*same, *others) if at("/a", equals, f'{{"a": {text}}}')
    ]

    assert matches == same


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\0", b"\xff\xfe", b"{", b'{"a": 1', b"[" * 100_000, b'{"a":' * 100_000,
        b'{"a": ' + b"9" * 5_000 + b"}", b'{"a": 1e99999}', b'{"a": -1e-99999}',
        b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}", b'{"a": 01}', b"{'a': 1}",
        b'{"a": NaN}', b'{"a": "\xed\xa0\x80"}', b'{"a": "\xc3"}', b"\xef\xbb\xbf",
        b'{"a": 1} trailing', b'{"a": 1, "a": 2}',
    ],
)  # fmt: skip
def test_no_body_makes_a_pointer_raise_or_match(body: bytes) -> None:
    assert not any(at("/a", equals, body) for equals in (1, "1", True, None, 1.5))


def test_the_last_of_two_members_of_one_name_counts() -> None:
    body = '{"a": "first", "a": "last"}'

    assert (at("/a", "first", body), at("/a", "last", body)) == (False, True)


def test_values_beside_the_pointer_are_not_converted() -> None:
    digits = "9" * 5_000
    body = f'{{"big": {digits}, "odd": NaN, "far": 1e99999, "a": "bad"}}'

    assert at("/a", "bad", body)
    assert not at("/big", int("9" * 1_000), body)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_json_in_any_unicode_encoding_is_read(encoding: str) -> None:
    assert at("/a", "\u00e9", '{"a": "\u00e9"}'.encode(encoding))


def test_an_index_of_5000_digits_leads_nowhere() -> None:
    assert not at(f"/{'9' * 1_000}", 1, "[1]")


def test_a_header_is_found_whatever_its_case_and_among_others() -> None:
    rule = header("X-Kind", "b\u00e4d")
    headers = [(b"x-kind", b"good"), (b"X-KIND", "b\u00e4d".encode())]

    assert rule.matches(body=b"", headers=headers)
    assert not rule.matches(body=b"", headers=headers[:1])
    assert not rule.matches(body=b"", headers=[(b"x-kind", b"BAD")])


def test_no_header_makes_a_rule_raise() -> None:
    headers = [(b"\xff\0", b"\xff"), (b"", b"")]

    assert not header("a", "b").matches(body=b"", headers=headers)
    assert header("a", "\ud800").matches(body=b"", headers=[(b"A", b"\xed\xa0\x80")])


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (None, ""), ([], ""), ({}, ""), ({"equals": 1}, ""),
        ({"header": "a", "pointer": "/a", "equals": "b"}, ""),
        ({"header": "a", "equals": "b", "not": True}, ""),
        ({"header": "", "equals": "b"}, "/header"),
        ({"header": "\ud800", "equals": "b"}, "/header"),
        ({"header": "a" * 256, "equals": "b"}, "/header"),
        ({"header": "a", "equals": None}, "/equals"),
        ({"header": "a", "equals": "b" * 4_097}, "/equals"),
        ({"pointer": "a", "equals": 1}, "/pointer"),
        ({"pointer": "/a~2", "equals": 1}, "/pointer"),
        ({"pointer": "/a~", "equals": 1}, "/pointer"),
        ({"pointer": "/" + "a" * 1_024, "equals": 1}, "/pointer"),
        ({"pointer": None, "equals": 1}, "/pointer"),
        ({"pointer": "/a", "equals": float("nan")}, "/equals"),
        ({"pointer": "/a", "equals": float("inf")}, "/equals"),
        ({"pointer": "/a", "equals": 10**1_000}, "/equals"),
        ({"pointer": "/a", "equals": []}, "/equals"),
        ({"pointer": "/a", "equals": {"b": 1}}, "/equals"),
    ],
)  # fmt: skip
def test_an_invalid_rule_is_refused_with_its_pointer(value: object, place: str) -> None:
    with pytest.raises(Invalid) as caught:
        content_match_rules.parse_rule(value)

    assert caught.value.pointer == place
    assert caught.value.detail.endswith(".")


def test_a_header_of_a_rule_is_in_lower_case_but_for_letters_beyond_ascii() -> None:
    rules = [
        content_match_rules.parse_rule({"header": name, "equals": "A"})
        for name in ("X-Tenant-\u00c9", "x-tenant-\u00c9", "x-tenant-\u00e9")
    ]

    assert rules[0] == rules[1] != rules[2]
    assert canonical(rules[0]) == '{"equals":"A","header":"x-tenant-\\u00c9"}'


@given(equals=SCALARS)
def test_a_rule_comes_back_from_its_canonical_text(
    equals: content_match_rules.Scalar,
) -> None:
    rule = pointer("/a~1b/\u00e9", equals)

    text = canonical(rule)

    assert text.isascii()
    assert from_canonical(text) == rule
    assert canonical(from_canonical(text)) == text


@given(value=VALUES, equals=SCALARS, data=st.data())
def test_matching_never_raises_and_finds_existing_values(
    value: object, equals: content_match_rules.Scalar, data: st.DataObject
) -> None:
    body = json.dumps({"here": equals, "beside": value}).encode()
    broken = data.draw(st.binary(max_size=40)) + body[data.draw(st.integers(0, 60)) :]

    assert pointer("/here", equals).matches(body=body)
    pointer("/beside/0/a", equals).matches(body=body)
    assert pointer("/here", equals).matches(body=broken) in {True, False}


@given(value=VALUES, equals=SCALARS, data=st.data())
def test_may_match_misses_no_match(
    value: object, equals: content_match_rules.Scalar, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["here", "é", "0", "", "a/b", 'q"', "\ud800"]))
    is_ascii, encoding = data.draw(
        st.sampled_from([(True, "utf-8"), (False, "utf-8"), (True, "utf-16-le")])
    )
    document = data.draw(st.sampled_from([{name: equals}, [equals], equals, value]))
    text = json.dumps(document, ensure_ascii=is_ascii)
    body = text.encode(encoding, "surrogatepass")
    escaped = name.replace("~", "~0").replace("/", "~1")

    for where in (f"/{escaped}", "/0", ""):
        rule = pointer(where, equals)
        if rule.matches(body=body):
            assert rule.may_match(body)


def test_may_match_spares_parsing_bodies_that_cannot_match() -> None:
    body = b'{"order": {"id": 12, "state": "shipped"}}'

    assert not pointer("/order/state", "lost").may_match(body)
    assert not pointer("/order/number", 12).may_match(body)
    assert pointer("/order/number", 12).may_match(body + b"\\")
    assert not pointer("/order/id", 13).may_match(body)
    assert not pointer("/order/state", "order").may_match(body)
    assert not pointer("/order/id", "12").may_match(body)
    assert pointer("/id", 12).may_match(body)


@pytest.mark.parametrize(
    ("equals", "spelling"),
    [
        (12, "12.0"),
        (12, "120e-1"),
        (12, "1.2E1"),
        (0, "-0"),
        (0, "0e7"),
        (-12, "-12"),
        (1.5, "15e-1"),
        (12.0, "12"),
        (1e22, "10000000000000000000000"),
        (True, "true"),
        (None, "null"),
        ("é", '"é"'),
        ("é", '"\\u00e9"'),
    ],
)
def test_may_match_knows_every_spelling_of_a_value(
    equals: content_match_rules.Scalar, spelling: str
) -> None:
    body = f'{{"order": {{"id"\t:\n {spelling} }}}}'.encode()
    rule = pointer("/order/id", equals)

    assert rule.matches(body=body)
    assert rule.may_match(body)


@pytest.mark.parametrize(
    ("equals", "spelling"),
    [(12, "123"), (12, "-12"), (1, "10"), (0, "01"), (True, '"true"'), (None, "0")],
)
def test_may_match_spares_parsing_bodies_with_another_value(
    equals: content_match_rules.Scalar, spelling: str
) -> None:
    assert not pointer("/id", equals).may_match(f'{{"id": {spelling}}}'.encode())


@pytest.mark.parametrize("digits", [10, 1_000, 5_000])
def test_a_number_of_many_digits_does_not_hide_other_values(digits: int) -> None:
    number = "7" * digits
    body = f' {{"n": {number}, "here": 1.0, "true": true}}\n'.encode()

    assert pointer("/here", 1).matches(body=body)
    assert not pointer("/true", 1).matches(body=body)
    assert pointer("/true", True).matches(body=body)
    if digits < content_match_rules.MOST_DIGITS:
        assert pointer("/n", int(number)).matches(body=body)
        assert not pointer("/n", int(number) + 1).matches(body=body)
