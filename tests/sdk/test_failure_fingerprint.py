from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import traceback as traceback_module
from typing import TypedDict, Unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poisonguard import fingerprint as module
from poisonguard.fingerprint import (
    BODY_LIMIT,
    SUMMARY_LIMIT,
    Fingerprint,
    body_shape,
    fingerprint,
    frames,
    normalised,
    values_of,
)

any_text = st.text(st.characters(exclude_categories=()))
undigited = st.text(st.characters(exclude_categories=["Nd"]), max_size=200)
numbers = st.integers(1, 10**12)

TRACEBACK = """Traceback (most recent call last):
  File "/srv/app/consumer.py", line 10, in main
    handle(message)
  File "/srv/venv/lib/python3.11/site-packages/redis/client.py", line 99, in call
  File "/srv/app/orders.py", line 20, in handle
    return [parse(x) for x in items]
  File "/srv/app/orders.py", line 20, in <listcomp>
  File "/srv/app/money/__init__.py", line 5, in parse
    ^^^^^^^^^^
  File "/usr/lib/python3.11/decimal.py", line 1, in Decimal
decimal.InvalidOperation: no
"""
JAVA = """java.lang.IllegalStateException: no
\tat java.base/java.util.Optional.get(Optional.java:143)
\tat com.acme.Orders.lambda$handle$3(Orders.java:12)
\tat org.springframework.Retry.call(Retry.java:1)
\tat app//com.acme.Main.main(Main.java:5)
Caused by: java.io.IOException: why
\tat com.acme.Store.read(Store.java:9)
"""
DOTNET = """Acme.BadOrder: no
   at System.Decimal.Parse(String s)
   at Acme.Orders.Parse(String text) in C:\\src\\Orders.cs:line 12
   at Acme.Program.Main(String[] args)
"""
NODE = """Error: no
    at async handle (/srv/app/orders.js:10:5)
    at new Order (/srv/app/order.js:3:9)
    at /srv/app/index.js:1:2
    at node:internal/main/run_main_module:22:47
"""


class Values(TypedDict, total=False):
    exception_type: str
    exception_message: str
    traceback: str
    cause: str
    message_type: str
    body: bytes


def of(**values: Unpack[Values]) -> Fingerprint:
    return fingerprint(
        exception_type=values.get("exception_type", ""),
        exception_message=values.get("exception_message", ""),
        traceback=values.get("traceback", ""),
        cause=values.get("cause", "fatal"),
        message_type=values.get("message_type", ""),
        body=values.get("body", b""),
    )


@pytest.mark.parametrize(
    ("message", "shape"),
    [
        ("'customer_id'", "'customer_id'"),
        ("missing field 'total'", "missing field 'total'"),
        ("Missing field: 'customer_id'", "Missing field: 'customer_id'"),
        ("'NoneType' object has no attribute 'x'",) * 2,
        ("I'm superstitious...", "I'm superstitious..."),
        ("can't and don't", "can't and don't"),
        (
            "invalid literal for int() with base 10: 'abc'",
            "invalid literal for int() with base <n>: <str>",
        ),
        (
            "time data '2026-13-45' does not match format '%Y-%m-%d'",
            "time data <str> does not match format <str>",
        ),
        (
            "'utf-8' codec can't decode byte 0xff in position 13",
            "'utf-<n>' codec can't decode byte <n> in position <n>",
        ),
        ('no such user "Bob Smith" or `x y`', "no such user <str> or <str>"),
        ("order 'order-8842' and 'line_1'", "order 'order-<n>' and 'line_<n>'"),
        ("at 2026-11-20T10:00:00.123Z, 2026-11-20", "at <time>, <time>"),
        ("2026-11-20 10:00:00+01:00 and 10:00:00,5", "<time> and <time>"),
        ("connect to 10.1.2.3:5432", "connect to <ip>:<n>"),
        ("fe80::1 and ::1 not std::vector", "<ip> and <ip> not std::vector"),
        ("mail bob.x+y@example.co.uk", "mail <email>"),
        ("see https://x.test/a?b=c for more", "see <url> for more"),
        ("open /var/lib/x.db or C:\\tmp\\y", "open <path> or <path>"),
        ("a/b or 1/2 or /health", "a/b or <n>/<n> or /health"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id <uuid>"),
        ("id 9f86d081884c7d65 at 0x7f12AB", "id <n> at <n>"),
        ("token x9Yz8Ab7 in 12ms, v2", "token <n> in <n>ms, v<n>"),
        ("-3 1.5e-05 1e5 1,234.56 +7", "<n> <n> <n> <n> <n>"),
        ("[1, 2, 3] of (4,5)", "[<n>] of (<n>)"),
        ("decade facade", "decade facade"),
        ("two\n  lines\tand\0NUL", "two lines and NUL"),
        ("half \ud800 a pair", "half ? a pair"),
    ],
)
def test_values_become_placeholders_and_names_stay(message: str, shape: str) -> None:
    assert normalised(message) == shape


@given(undigited, numbers, numbers, undigited)
def test_failures_that_differ_in_a_number_are_one_problem(
    before: str, one: int, other: int, after: str
) -> None:
    assert normalised(f"{before}{one}{after}") == normalised(f"{before}{other}{after}")


@given(any_text, any_text, any_text, any_text, any_text, st.binary())
def test_any_failure_has_one_clean_fingerprint(
    kind: str, message: str, trace: str, cause: str, message_type: str, body: bytes
) -> None:
    values: Values = {
        "exception_type": kind,
        "exception_message": message,
        "traceback": trace,
        "cause": cause,
        "message_type": message_type,
        "body": body,
    }

    result = of(**values)

    assert result == of(**values)
    assert len(result.digest) == 32
    assert len(result.summary) <= SUMMARY_LIMIT
    for text in (result.title, result.summary, *result.inputs):
        text.encode()
        assert not re.search("[\0-\x1f\x7f-\x9f]", text)


@given(any_text, any_text)
def test_only_equal_inputs_share_a_digest(one: str, other: str) -> None:
    first, second = of(exception_type=f"E{one}"), of(exception_type=f"E{other}")

    assert (first.digest == second.digest) == (first.inputs == second.inputs)


def test_type_message_and_frames_each_tell_problems_apart() -> None:
    digests = {
        of(exception_type="ValueError", exception_message="no").digest,
        of(exception_type="TypeError", exception_message="no").digest,
        of(exception_type="ValueError", exception_message="yes").digest,
        of(exception_type="ValueError", traceback=TRACEBACK).digest,
        of(exception_type="ValueError", traceback=JAVA).digest,
    }

    assert len(digests) == 5


def test_with_an_exception_the_cause_and_the_body_do_not_matter() -> None:
    one = of(traceback=TRACEBACK, cause="fatal", body=b"{}", message_type="a")
    other = of(traceback=TRACEBACK, cause="crash", body=b"[]", message_type="b")

    assert one == other


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        ("ValueError", "ValueError"),
        ("decimal.InvalidOperation", "InvalidOperation"),
        ("com.acme.Orders$BadOrder", "BadOrder"),
        ("Acme::Orders::Bad", "Bad"),
        ("", "Exception"),
        ("dots...", "dots..."),
    ],
)
def test_the_title_is_the_short_type(kind: str, title: str) -> None:
    assert of(exception_type=kind, exception_message="no").title == title


def test_a_builtin_type_has_one_name() -> None:
    assert of(exception_type="builtins.KeyError") == of(exception_type="KeyError")


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (
            TRACEBACK,
            (
                "money/__init__.py in parse",
                "orders.py in handle",
                "consumer.py in main",
            ),
        ),
        (JAVA, ("com.acme.Orders.lambda$handle$<n>", "com.acme.Main.main")),
        (DOTNET, ("Acme.Orders.Parse", "Acme.Program.Main")),
        (NODE, ("handle", "Order", "index.js")),
        ("no stack at all\nat noon", ()),
        ("", ()),
    ],
)
def test_the_frames_are_the_innermost_of_the_application(
    trace: str, expected: tuple[str, ...]
) -> None:
    assert frames(trace) == expected


def test_lines_and_folders_do_not_tell_problems_apart() -> None:
    moved = TRACEBACK.replace("line 20", "line 21").replace("/srv/app", "/opt/app-v2")

    assert frames(moved) == frames(TRACEBACK)


def test_only_the_last_traceback_of_a_chain_counts() -> None:
    last = 'Traceback (most recent call last):\n  File "a.py", line 1, in a\nE: x\n'

    assert frames(f"{TRACEBACK}\nDuring handling ...\n\n{last}") == ("a.py in a",)


def test_a_library_that_fails_by_itself_still_has_frames() -> None:
    trace = '  File "/usr/lib/python3.11/json/decoder.py", line 1, in decode\n'

    assert frames(trace) == ("decoder.py in decode",)


def test_a_path_with_quotes_is_the_path_of_a_frame() -> None:
    trace = '  File "/srv/an "odd" app/orders.py", line 1, in handle\n'

    assert frames(trace) == ("orders.py in handle",)


def test_a_recursion_is_one_frame_however_deep() -> None:
    def fail(depth: int) -> None:
        if not depth:
            raise ValueError
        fail(depth - 1)

    def trace(depth: int) -> str:
        try:
            fail(depth)
        except ValueError:
            return traceback_module.format_exc()
        raise AssertionError

    assert frames(trace(50)) == frames(trace(1))
    assert frames(trace(50)) == (
        "test_failure_fingerprint.py in fail",
        "test_failure_fingerprint.py in trace",
    )


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (b'{"b": 1, "a": {"c": {"d": {"e": 2}}}}', "json {a: {c: {d: {}}}, b}"),
        (b'[{"a": 1}, {"a": 2, "b": null}, 3]', "json [ | {a, b} | {a}]"),
        (b'{"order-1": 2, "order-2": 3}', "json {order-<n>}"),
        (b"\xef\xbb\xbf{}", "json {}"),
        (b"NaN", "json"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "json {a}"),
        (b'{"a": 1e400}', "json {a}"),
        (b'{"\\ud800": 1}', "json {?}"),
        (b'{"a": 1', "text starting with {"),
        (b"[" * 65, "large text starting with ["),
        (b"[" * 64 + b"]" * 64, "json " + "[" * 64 + "]" * 64),
        (b'"' + b"[" * 1_000 + b'"', "json"),
        (b" " * BODY_LIMIT + b"{}", "large blank"),
        (b"{" + b" " * BODY_LIMIT + b"}", "large text starting with {"),
        (b"", "empty"),
        (b"\n", "blank"),
        (b"hello", "text"),
        ("ü".encode() * 1_000, "text"),
        (b"a\0b", "binary starting with 61"),
        (b"\xff\xfe", "binary starting with ff"),
        (b'<?xml version="1.0"?><!-- x --><ns:order id="1"/>', "markup <ns:order>"),
        (b"<", "markup"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"\x80\x04\x95", "binary starting with 80"),
    ],
)
def test_a_body_has_the_shape_of_its_keys_or_of_its_first_bytes(
    body: bytes, shape: str
) -> None:
    assert body_shape(body) == shape


def test_without_an_exception_cause_type_and_shape_tell_problems_apart() -> None:
    digests = {
        of().digest,
        of(cause="max_dequeue_count").digest,
        of(message_type="text/plain").digest,
        of(body=b'{"a": 1}').digest,
        of(body=b'{"b": 1}').digest,
    }

    assert len(digests) == 5
    assert of(body=b'{"a": 1}') == of(body=b'{"a": "x"}')
    assert of(message_type="Text/Plain; charset=x") == of(message_type="text/plain")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("no such key 'customer_id'", ()),
        ("order 4711 of a@b.example failed", ("4711", "a@b.example")),
        ("POST https://x.example/a?b=1: 503", ("https://x.example/a?b=1:", "503")),
        ("no such file: '/tmp/a b'", ("'/tmp/a b'",)),
        ("unknown 'order-8842'", ("'order-8842'",)),
        ("ids 1, 2, 3", ("1", "2", "3")),
    ],
)
def test_values_are_what_the_normalised_message_lacks(
    text: str, values: tuple[str, ...]
) -> None:
    assert values_of(text) == values


@given(numbers, numbers)
def test_messages_of_one_shape_differ_in_their_values_alone(a: int, b: int) -> None:
    texts = [f"order {number} failed twice" for number in (a, b)]

    assert [values_of(text) for text in texts] == [(str(a),), (str(b),)]
    assert normalised(texts[0]) == normalised(texts[1])


@given(any_text)
def test_the_values_of_any_text_are_parts_of_it_and_one_line(text: str) -> None:
    line = values_of(text)

    assert all("\n" not in value and "\0" not in value for value in line)
    assert sum(map(len, line)) <= len(text)


pieces = st.sampled_from(
    [
        *("order", "too", "f", "dead", "A", "e", "http", "File", "at", "in", "d\u00e4"),
        *(" ", "  ", ". ", ": ", ", ", "; ", ".", ":", "://", "::", "@", "/", "\\"),
        *("'", '"', "`", "-", "+", "_", "=", "(", ")", "\n", "17", "1.5", "0xff"),
        *("2026-11-20", "T10:00:00", "10.1.2.3", "C:\\x", "fe80::1", "beef-"),
    ]
)


@given(st.lists(pieces, max_size=20).map("".join))
def test_no_value_begins_within_the_plain_words_that_are_stepped_over(
    text: str,
) -> None:
    lines = module._VALUE.pattern.splitlines()
    others = [line for line in lines if "<plain>" not in line]
    others[1] = others[1].replace("|", "", 1)
    slow = re.compile("\n".join(others), module._VALUE.flags)
    line = module._LIST.sub("<n>", slow.sub(module._placeholder, module._clean(text)))

    assert normalised(text) == line[:SUMMARY_LIMIT]


@pytest.mark.parametrize("trace", [TRACEBACK, DOTNET])
def test_frames_are_computed_once_whatever_the_message_says(trace: str) -> None:
    before, start = frames(trace), module._kept_frames.cache_info()

    for number in range(1_000):
        named = trace.replace("no", f"order {number} is too old")
        assert frames(named) == before

    now = module._kept_frames.cache_info()
    assert now.misses == start.misses
    assert now.hits >= start.hits + 1_000


def test_what_is_kept_for_the_next_failure_is_bounded() -> None:
    deep = '  File "/srv/app/consumer.py", line 10, in main\n' * 500
    before = module._kept_frames.cache_info().currsize

    for number in range(1_000):
        of(
            exception_type="x" * 100_000,
            exception_message=f"{number}" * 100_000,
            traceback=deep.replace("consumer", f"consumer{number}"),
        )

    assert module._kept_frames.cache_info().currsize == before
    assert module._normalised.cache_info().currsize <= module.KEPT
    assert module._of_exception_parts.cache_info().currsize <= module.KEPT


HOSTILE = [
    "' " * 50_000,
    "'a" * 50_000,
    "a" * 100_000,
    "a:" * 50_000,
    "1." * 50_000,
    "1:" * 50_000,
    "a@" * 50_000,
    "a.b-" * 25_000,
    "/a" * 50_000,
    "0x" * 50_000,
    "-" * 100_000,
    "<n>, " * 20_000,
    "aaaaaaaa-" * 10_000,
    "\\" * 100_000,
    '"' * 99_999,
    "\n at " * 25_000,
    "word " * 20_000,
    "word. word" * 10_000,
    "a, a" * 25_000,
    " " * 100_000,
    "|" * 99_999 + "x",
    '  File "' * 12_500,
    '  File "' + '", line 1' * 12_500,
    '  File ""\n' * 10_000,
    '  File "a", line 1, in a\n' * 5_000,
    "Traceback (most recent call last)" * 3_000,
    "[" * 100_000,
    '{"a":' * 20_000,
    json.dumps([{f"k{n}-{m}": n for n in range(50)} for m in range(50)]),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_takes_long_to_normalise(text: str) -> None:
    begun = time.thread_time()

    normalised(text)
    values_of(text)
    frames(text)
    body_shape(text.encode()[:BODY_LIMIT])

    assert time.thread_time() - begun < 1


def test_the_digest_is_the_same_in_every_process() -> None:
    body = '{"b": 1, "a": [{"x": 1}, {"y": 2}, {"z": 3}]}'
    program = (
        "from poisonguard.fingerprint import fingerprint as f;"
        "print(f(exception_type='', exception_message='', traceback='', cause='c',"
        f" message_type='t', body={body!r}.encode()).digest.hex())"
    )

    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": "sdk", "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }

    assert said == {of(cause="c", message_type="t", body=body.encode()).digest.hex()}
