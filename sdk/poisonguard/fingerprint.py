"""Which failures are one problem: same reason, same fingerprint.

A failure with an exception is told apart by the exception's type, by what stays of its
message when the values are taken out, and by the innermost frames of the application
itself. A failure without one is told apart by its cause, the type of the message and
the shape of its body.

Of a message these are values, and a placeholder stands for them:

==========  ======================================================================
`<url>`     anything with `://`
`<email>`   an e-mail address
`<uuid>`    8-4-4-4-12 hexadecimal digits
`<time>`    an ISO-8601 date, with or without a time; a time with seconds
`<ip>`      an IPv4 or IPv6 address
`<path>`    an absolute path of two parts or more; a Windows path
`<n>`       a number; a word of hexadecimal digits one of which is 0 to 9; a word
            with three runs of digits or more; the digits within any other word
`<str>`     a quoted text, unless it is a name
==========  ======================================================================

A quoted text is a name, and kept, when it is one word of letters, digits, `_`, `.` and
`-` that starts with a letter or `_`: `KeyError: 'customer_id'` and `KeyError: 'total'`
are two problems. Behind a colon it is taken for a value (`invalid literal for int()
with base 10: 'abc'`) unless it has a `_`.

The work is bounded whatever comes in: see the limits below. Every text that comes out
is one line without NUL, other control characters or lone surrogates.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

# Raise it whenever the same failure may get another digest than before.
VERSION = 1

TYPE_LIMIT = 200
MESSAGE_LIMIT = 4_096  # characters read of a message
SUMMARY_LIMIT = 300  # characters kept of a message without its values
TRACEBACK_LIMIT = 32_768  # characters read of a traceback, at the end that counts
FRAMES = 3
FRAME_LIMIT = 200
BODY_LIMIT = 65_536  # bytes; a longer body is not parsed
NESTING_LIMIT = 64  # a body nested deeper is not parsed
SHAPE_DEPTH = 3
SHAPE_WIDTH = 50  # members of an object, elements of an array
SHAPE_LIMIT = 2_000
# What is kept for the next failures: at most so many stacks and messages, none longer
# than this, so that hostile ones take a few megabytes at most.
KEPT = 256
KEPT_LIMIT = 8_192  # characters


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """Why failures are one problem: `digest` is equal when the `inputs` are."""

    digest: bytes
    inputs: tuple[str, ...]
    title: str
    summary: str


def fingerprint(
    *,
    exception_type: str,
    exception_message: str,
    traceback: str,
    cause: str,
    message_type: str,
    body: bytes,
) -> Fingerprint:
    """Classify one failure; the three exception texts are "" when there was none."""
    if exception_type or exception_message or traceback:
        return _of_exception(exception_type, exception_message, traceback)
    return _of_message(cause, message_type, body)


def normalised(text: str) -> str:
    """Replace the values in an error message by placeholders, in one line."""
    return _normalised(text[:MESSAGE_LIMIT])


@lru_cache(KEPT)
def _normalised(text: str) -> str:
    """Replace the values in an error message that is cut."""
    message = _VALUE.sub(_placeholder, _clean(text))
    if "<n>," in message or "<n>;" in message:
        message = _LIST.sub("<n>", message)
    return message[:SUMMARY_LIMIT]


def values_of(text: str) -> tuple[str, ...]:
    """Return the values that `normalised` takes out of an error message, in order."""
    matches = _VALUE.finditer(_clean(text[:MESSAGE_LIMIT]))
    return tuple(m.group() for m in matches if _placeholder(m) != m.group())


def frames(traceback: str) -> tuple[str, ...]:
    """Return the application's frames of a stack, innermost first, without lines.

    A frame is `file in function` for Python and the function for stacks of `at` lines
    (Java, .NET, JavaScript). Where no frame is the application's own, any frame is.
    """
    stack = _python_stack(traceback[-TRACEBACK_LIMIT:])
    innermost = _frames_of(stack, is_python=True)
    if innermost:
        return innermost
    return _frames_of(_at_stack(traceback[:TRACEBACK_LIMIT]), is_python=False)


def body_shape(body: bytes) -> str:
    """Describe the shape of a body: the keys of its JSON, or its first bytes."""
    if len(body) > BODY_LIMIT or _nesting(body) > NESTING_LIMIT:
        return f"large {_first_bytes(body)}"
    try:
        # As text: of bytes json.loads guesses encodings that _nesting cannot read.
        text = body.decode("utf-8-sig")
        value = json.loads(text, parse_int=_drop_number, parse_float=_drop_number)
    except ValueError:
        return _first_bytes(body)
    return f"json {_shape(value, SHAPE_DEPTH)}".rstrip()[:SHAPE_LIMIT]


def _of_exception(kind: str, message: str, traceback: str) -> Fingerprint:
    """Fingerprint a failure by its exception's type, message and frames."""
    return _of_exception_parts(
        kind[:TYPE_LIMIT], normalised(message), frames(traceback)
    )


@lru_cache(KEPT)
def _of_exception_parts(
    kind: str, message: str, innermost: tuple[str, ...]
) -> Fingerprint:
    """Fingerprint an exception's type, normalised message and innermost frames."""
    full = _clean(kind).removeprefix("builtins.")
    inputs = (full, message, *innermost)
    return Fingerprint(
        digest=_digest("exception", *inputs),
        inputs=inputs,
        title=re.split(r"[.:\\$]", full)[-1] or full or "Exception",
        summary=message,
    )


def _of_message(cause: str, message_type: str, body: bytes) -> Fingerprint:
    """Fingerprint a failure without exception by its cause and its message's shape."""
    cause, shape = _clean(cause[:TYPE_LIMIT]), body_shape(body)
    kind = _clean(message_type[:TYPE_LIMIT].partition(";")[0]).lower()
    return Fingerprint(
        digest=_digest("message", cause, kind, shape),
        inputs=(cause, kind, shape),
        title=cause,
        summary=" ".join(part for part in (kind, shape) if part)[:SUMMARY_LIMIT],
    )


def _digest(*parts: str) -> bytes:
    """Hash the parts of a fingerprint, each behind its length, to avoid collisions."""
    digest = hashlib.sha256()
    for part in (str(VERSION), *parts):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return digest.digest()


# --- texts

_DIRT = re.compile("[\x00-\x20\x7f-\xa0\u2028\u2029]+")


def _clean(text: str) -> str:
    """Make any text one line that UTF-8 can hold."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return _DIRT.sub(" ", text).strip()


# Every quantifier is possessive, bounded or stopped by its neighbour, and words are
# entered at their start only: no input makes this search longer than linear. Groups are
# repeated in atomic groups, for Python before 3.11.5 loses matches of a possessive one
# (https://github.com/python/cpython/issues/106052).
# Most of a message is plain words: `plain` steps over them at once. No value begins in
# one of them, for each would need another character before the blank.
_VALUE = re.compile(
    r"""
    (?P<plain>(?<![A-Za-z])(?>(?:[A-Za-z]++[.:]?(?:[\x20,;]++|\Z))+))
    |(?P<url>[A-Za-z][A-Za-z0-9+.-]{1,15}://[^\s'"<>`]++)
    |(?P<email>(?<![\w.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?>(?:\.[A-Za-z0-9-]{1,63})+))
    |(?P<str>(?<![A-Za-z0-9])(?:'[^']*+'|"[^"]*+"|`[^`]*+`)(?![A-Za-z0-9]))
    |(?P<uuid>(?<![A-Za-z0-9])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}
        (?![A-Za-z0-9]))
    |(?P<time>(?<![0-9])[0-9]{4}-[0-9]{2}-[0-9]{2}
        (?>(?:[T\x20][0-9]{2}:[0-9]{2}(?>(?::[0-9]{2}(?>(?:[.,][0-9]++)?))?)
        (?>(?:Z|[+-][0-9]{2}:?[0-9]{2})?))?)(?![0-9]))
    |(?P<clock>(?<![0-9:])[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?>(?:[.,][0-9]++)?)
        (?![0-9:]))
    |(?P<ip>(?<![0-9.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![0-9.])
        |(?<![0-9A-Za-z:])(?:[0-9A-Fa-f]*+:){2,7}[0-9A-Fa-f]++(?![0-9A-Za-z:]))
    |(?P<path>(?<![\w/.<])/[\w.@%+~-]++(?>(?:/[\w.@%+~-]++)+)/?
        |(?<!\w)[A-Za-z]:\\[^\s'"]++)
    |(?P<hex>(?<![A-Za-z0-9])0[xX][0-9A-Fa-f]++)
    |(?P<n>(?>(?:(?<![A-Za-z0-9])[-+])?)(?<![A-Za-z0-9])
        [0-9]++(?>(?:[.,][0-9]++)*)(?>(?:[eE][-+]?[0-9]++)?)(?![A-Za-z0-9]))
    |(?P<word>(?<![A-Za-z0-9])[A-Za-z]*+[0-9][A-Za-z0-9]*+)
    """,
    re.VERBOSE | re.ASCII,
)
_SAME = {"clock": "time", "hex": "n"}
_LIST = re.compile(r"<n>(?>(?:[,;]\ ?<n>)+)")
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,79}", re.ASCII)
_DIGITS = re.compile(r"[0-9]+")
_HEX_WORD = re.compile(r"[0-9A-Fa-f]+")


def _placeholder(match: re.Match[str]) -> str:
    """Return what replaces a value in a message; a quoted name loses only values."""
    text = match.group()
    if match.lastgroup == "plain":
        return text
    if match["str"]:
        before = match.string[max(0, match.start() - 2) : match.start()].rstrip()
        return _without_quoted_values(text, after_colon=before.endswith(":"))
    if match["word"]:
        return _without_digits(text)
    return f"<{_SAME.get(str(match.lastgroup), match.lastgroup)}>"


def _without_quoted_values(text: str, *, after_colon: bool) -> str:
    """Return a quoted name without its values, `<str>` for any other text."""
    inside = text[1:-1]
    if not _NAME.fullmatch(inside) or (after_colon and "_" not in inside):
        return "<str>"
    # A name may have values within: 'order-8842'.
    return f"{text[0]}{_VALUE.sub(_placeholder, inside)}{text[-1]}"


def _without_digits(text: str) -> str:
    """Return a word without its digits, `<n>` if it is a number or an id."""
    if _HEX_WORD.fullmatch(text) or len(_DIGITS.findall(text)) > 2:
        return "<n>"
    return _DIGITS.sub("<n>", text)


# --- tracebacks

_PYTHON_START = "Traceback (most recent call last)"
_PYTHON_FILE = 'File "'
_PYTHON_FRAME = re.compile(
    # The name of a file may hold quotes, too.
    r'^[ |+]*+File "([^\n]{1,1000}?)", line [0-9]++, in ([^\n]{1,200})',
    re.MULTILINE,
)
_AT_FRAME = re.compile(r"^[ \t]++at (?>(?:async |new )?)([^\n]{1,1000})", re.MULTILINE)
_AT_LINE = re.compile(r"^[ \t]++at ", re.MULTILINE)
_BLOCK_END = re.compile(r"^[ \t]*+(?:Caused by|Suppressed):", re.MULTILINE)
_LIBRARY = re.compile(
    r"(?:^|[/\\])(?:site-packages|dist-packages|poisonguard|node_modules)[/\\]"
    r"|[/\\]lib[/\\]python[0-9.]+[/\\]|[/\\]Python[0-9]+[/\\]Lib[/\\]|^<|node:internal"
)
_PLATFORM = re.compile(
    r"(?:java|javax|jakarta|jdk|sun|kotlin|scala|System|Microsoft)[./]"
    r"|org\.springframework\."
)
# Python 3.12 no longer gives a comprehension a frame of its own.
_INLINED = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>"})
# What a compiler or a run-time counts up: lambda$3, $$Lambda$14/0x0000ff, <>c__2_0.
_GENERATED = re.compile(r"0x[0-9A-Fa-f]+|[0-9]+")


def _python_stack(text: str) -> str:
    """Cut the last traceback out of a text; "" without any frame of Python.

    The message, which may differ each time, stands behind it.
    """
    last = text[max(0, text.rfind(_PYTHON_START)) :]
    path = last.rfind(_PYTHON_FILE)
    if path < 0:
        return ""
    end = last.find("\n", path)
    return last if end < 0 else last[:end]


def _at_stack(text: str) -> str:
    """For a fingerprint, cut the first `at` lines out of a text; "" without any."""
    end = _BLOCK_END.search(text)
    block = text[: end.start()] if end else text
    first = _AT_LINE.search(block)
    return block[first.start() :] if first else ""


def _frames_of(stack: str, *, is_python: bool) -> tuple[str, ...]:
    """Return a stack's innermost frames for a fingerprint, of the application if any.

    The next failure mostly has the same stack: its frames are kept.
    """
    compute = _kept_frames if len(stack) <= KEPT_LIMIT else _computed_frames
    return compute(stack, is_python=is_python)


def _computed_frames(stack: str, *, is_python: bool) -> tuple[str, ...]:
    """Compute the innermost frames of a stack, of the application if it has any."""
    frames_in_order = list(_python_frames(stack) if is_python else _at_frames(stack))
    ours = [frame for frame, in_app in frames_in_order if in_app]
    return tuple(_innermost(ours or [frame for frame, _ in frames_in_order]))


_kept_frames = lru_cache(KEPT)(_computed_frames)


def _python_frames(stack: str) -> Iterator[tuple[str, bool]]:
    """Yield the frames of a traceback, innermost first."""
    for path, function in reversed(_PYTHON_FRAME.findall(stack)):
        if function not in _INLINED:
            yield f"{_short_path(path)} in {function}", not _LIBRARY.search(path)


def _short_path(path: str) -> str:
    """Return the file name of a path, with its folder for __init__ and the like."""
    parts = re.split(r"[/\\]", path)
    # Every package has an __init__.py: without its folder the name says nothing.
    return "/".join(parts[-2:] if parts[-1].startswith("__") else parts[-1:])


def _at_frames(stack: str) -> Iterator[tuple[str, bool]]:
    """Yield the frames of a block of `at` lines, which is innermost first."""
    for line in _AT_FRAME.findall(stack):
        function = re.split(r" in |\(", line, maxsplit=1)[0].strip()
        function = function.rpartition("/")[2] or function
        in_app = not (_PLATFORM.match(function) or _LIBRARY.search(line))
        yield re.sub(r":[0-9:]+$", "", function), in_app


def _innermost(candidates: Iterable[str]) -> list[str]:
    """Keep the first few frames; a recursion counts once however deep it went."""
    innermost: list[str] = []
    for raw in candidates:
        frame = _GENERATED.sub("<n>", _clean(raw))[:FRAME_LIMIT]
        if innermost[-1:] != [frame]:
            innermost.append(frame)
        if len(innermost) == FRAMES:
            break
    return innermost


# --- bodies

_STRING = re.compile(rb'"(?>(?:[^"\\]++|\\.)*)"?', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_ELEMENT = re.compile(rb"<([A-Za-z_][\w.:-]{0,79})")
_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PK\x03\x04", "zip"),
    (b"BZh", "bzip2"),
    (b"{", "text starting with {"),
    (b"[", "text starting with ["),
)


def _drop_number(_: str) -> None:
    """Return None for a JSON number: a shape has no values, 5,000 digits are no int."""


def _nesting(body: bytes) -> int:
    """Count how deep a body's brackets go: of a deep one, no shape is parsed."""
    depth = deepest = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", body)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _shape(value: object, depth: int) -> str:
    """Describe the keys and nesting of a JSON value, without its values."""
    if isinstance(value, dict):
        keys = sorted(value)[:SHAPE_WIDTH] if depth else ()
        members = {_member(key, _shape(value[key], depth - 1)) for key in keys}
        return "{" + ", ".join(sorted(members)) + "}"
    if isinstance(value, list):
        shapes = {_shape(element, depth) for element in value[:SHAPE_WIDTH]}
        return "[" + " | ".join(sorted(shapes)) + "]"
    return ""


def _member(key: str, shape: str) -> str:
    """For a body's shape, describe a JSON member by its key and its value's shape."""
    # Keys may be values too, as in {"order-8842": ...}.
    key = normalised(key)
    return f"{key}: {shape}" if shape else key


def _first_bytes(body: bytes) -> str:
    """Describe a body that is no JSON by its first bytes."""
    start = body[:1_024].removeprefix(codecs.BOM_UTF8).lstrip()
    if not start:
        return "blank" if body else "empty"
    if start.startswith(b"<"):
        element = _ELEMENT.search(start)
        return f"markup <{element[1].decode()}>" if element else "markup"
    for magic, name in _MAGIC:
        if start.startswith(magic):
            return name
    return "text" if _is_text(start) else f"binary starting with {start[0]:02x}"


def _is_text(start: bytes) -> bool:
    """Tell whether the beginning of a body is UTF-8 without NUL."""
    try:
        # Not final: the cut may have gone through the middle of a character.
        codecs.utf_8_decode(start, "strict", False)  # noqa: FBT003 - positional in C
    except UnicodeDecodeError:
        return False
    return b"\0" not in start
