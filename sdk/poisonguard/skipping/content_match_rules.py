"""Rules: skips by the content of a message, matched alike by server and guard.

On the wire a rule is one of two JSON objects. Matching never raises, however broken or
hostile the message:

- `{"header": name, "equals": text}`: one of the headers of that name is that text.
  Names are compared without regard to the case of ASCII letters, and a rule has its
  name in lower case; values are compared byte for byte with the text in UTF-8.
- `{"pointer": "/a/b", "equals": scalar}`: the body is JSON (in UTF-8, 16 or 32), and
  the JSON Pointer (RFC 6901) leads to that text, number, true, false or null.

Scalars are equal when they are of one kind and have one value. Text is compared by
code point, with no normalisation. A number with a fraction or an exponent is the
nearest IEEE double, one without is exact however long: 1, 1.0 and 1e0 are equal, and
true is not 1. A name that an object holds twice means its last value. NaN and Infinity,
which some write where JSON has no word for them, equal nothing. A body that is no JSON,
or is nested too deeply to be read, matches no pointer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from poisonguard.contract import Invalid

Scalar = str | int | float | bool | None
Headers = Sequence[tuple[bytes, bytes]]

NAME_LIMIT = 255
POINTER_LIMIT = 1_024
TEXT_LIMIT = 4_096
# Python reads 4,300 digits at most; no number that means anything is half as long.
MOST_DIGITS = 1_000

_BROKEN_ESCAPE = re.compile("~(?![01])")
_BACKSLASH, _NUL = b"\\\0"  # as integers: ten times faster to look for than bytes
_INDEX = re.compile("0|[1-9][0-9]*")
_NOWHERE = object()


@dataclass(frozen=True, kw_only=True, slots=True)
class HeaderRule:
    """One of the headers of this name is this text."""

    header: str
    equals: str

    @property
    def pair(self) -> tuple[bytes, bytes]:
        """Return the lower-case name and the value of a matching header."""
        return comparable_name(self.header).encode(), _bytes(self.equals)

    def matches(self, *, body: bytes, headers: Headers) -> bool:  # noqa: ARG002
        """Tell whether one of a message's headers is that of the rule."""
        name, value = self.pair
        return any(n.lower() == name and v == value for n, v in headers)

    def to_wire(self) -> dict[str, object]:
        """Return a header rule as a JSON object."""
        return {"header": self.header, "equals": self.equals}


@dataclass(frozen=True, kw_only=True, slots=True)
class PointerRule:
    """The body is JSON, and what the pointer leads to equals this scalar."""

    pointer: str
    equals: Scalar
    _path: list[str] = field(init=False, repr=False, compare=False)
    _pattern: re.Pattern[bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tokens = self.pointer.split("/")[1:]
        path = [token.replace("~1", "/").replace("~0", "~") for token in tokens]
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_pattern", _pattern(path, self.equals))

    def may_match(self, body: bytes) -> bool:
        """Tell quickly whether a body may match the rule: most bodies do not."""
        if self._pattern.search(body):
            return True
        # Only an escape writes text otherwise, and only UTF-16 and 32 hold NUL.
        return _BACKSLASH in body or _NUL in body

    def matches(self, *, body: bytes, headers: Headers = ()) -> bool:  # noqa: ARG002
        """Parse a message's body, and tell whether it holds the value of the rule."""
        return self.matches_document(read(body))

    def matches_document(self, document: object) -> bool:
        """Match a body parsed by `read`, so that many rules share one parse."""
        value = document
        for name in self._path:
            if type(value) is dict:
                value = value.get(name, _NOWHERE)
            else:
                value = _element(value, name)
        return _equal(value, self.equals)

    def to_wire(self) -> dict[str, object]:
        """Return a pointer rule as a JSON object."""
        return {"pointer": self.pointer, "equals": self.equals}


Rule = HeaderRule | PointerRule


def parse_rule(value: object) -> Rule:
    """Parse a skip's content rule; raise `Invalid` with the pointer and remedy."""
    if not isinstance(value, Mapping):
        raise Invalid("", "a rule must be a JSON object.")
    members = cast(Mapping[str, object], value)
    if set(members) == {"header", "equals"}:
        return HeaderRule(
            header=_header_name(members["header"]), equals=_text(members["equals"])
        )
    if set(members) == {"pointer", "equals"}:
        return PointerRule(
            pointer=_pointer(members["pointer"]), equals=_scalar(members["equals"])
        )
    raise Invalid(
        "", 'a rule must hold "equals" and either "header" or "pointer", nothing else.'
    )


def comparable_name(header: str) -> str:
    """Return a header's name as names are compared: ASCII letters in lower case."""
    return header.encode().lower().decode()


def canonical(rule: Rule) -> str:
    """Return a skip's rule as ASCII text, equal for equal rules."""
    return json.dumps(rule.to_wire(), sort_keys=True, separators=(",", ":"))


def from_canonical(text: str) -> Rule:
    """Parse a skip's rule that `canonical` wrote."""
    return parse_rule(json.loads(text))


class _Number(str):
    """A number kept as its digits; only a pointed-at number is converted."""

    __slots__ = ()


# Created once: creating a decoder takes longer than parsing a message.
_usual = json.JSONDecoder(parse_constant=lambda _: _NOWHERE)
_scan = _usual.scan_once  # type: ignore[attr-defined] # typeshed leaves it out
_digits = json.JSONDecoder(
    parse_int=_Number, parse_float=_Number, parse_constant=lambda _: _NOWHERE
)
_BLANKS = " \t\n\r"


def read(body: bytes) -> object:
    """Parse a message body for `matches_document`; only JSON can match pointers."""
    # For objects and arrays, two bytes tell UTF-8 from UTF-16 and 32.
    is_usual = len(body) > 1 and body[0] in b"{[" and body[1] != _NUL
    encoding = "utf-8" if is_usual else json.detect_encoding(body)
    try:
        text = body.decode(encoding, "surrogatepass").strip(_BLANKS)
    except ValueError:
        return _NOWHERE
    try:
        document, end = _scan(text, 0)
    except (StopIteration, RecursionError, json.JSONDecodeError):
        return _NOWHERE
    except ValueError:  # a number has more digits than Python reads
        return _read_digits(text)
    return document if end == len(text) else _NOWHERE


def _read_digits(text: str) -> object:
    """Parse a JSON body whose numbers have too many digits; they stay text."""
    try:
        return _digits.decode(text)
    except (ValueError, RecursionError):
        return _NOWHERE


def _element(value: object, name: str) -> object:
    """Return an element of a JSON array, `_NOWHERE` of anything else."""
    # An index has at most as many digits as the length: int() refuses to read 5,000.
    if (
        not isinstance(value, list)
        or not _INDEX.fullmatch(name)
        or len(name) > len(str(len(value)))
    ):
        return _NOWHERE
    place = int(name)
    return value[place] if place < len(value) else _NOWHERE


def _equal(actual: object, expected: Scalar) -> bool:
    """Tell whether a value of a body equals the scalar of a rule."""
    if isinstance(actual, _Number):
        return _is_number(expected) and _number_value(actual) == expected
    if isinstance(expected, str):
        return isinstance(actual, str) and actual == expected
    if _is_number(expected):
        return _is_number(actual) and actual == expected
    return actual is expected


def _is_number(value: object) -> bool:
    """Tell whether a JSON value is a number, and neither true nor false."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number_value(digits: str) -> int | float | None:
    """Convert the digits of a number; None for a whole number that is too long."""
    if not digits.lstrip("-").isdigit():
        return float(digits)
    return int(digits) if len(digits) <= MOST_DIGITS else None


def _pattern(path: list[str], equals: Scalar) -> re.Pattern[bytes]:
    """Return a regular expression that each body matching a pointer rule contains.

    A body with escapes may match the rule without it.
    """
    if not path or _INDEX.fullmatch(path[-1]):  # it may be an element of an array
        return re.compile(_literal(equals))
    name = re.escape(_quoted(path[-1]))
    return re.compile(name + b"[ \t\n\r]*:[ \t\n\r]*" + _literal(equals))


def _literal(equals: Scalar) -> bytes:
    """Return a regular expression for each JSON spelling of a rule's value.

    Spellings with escapes are left out.
    """
    match equals:
        case str():
            return re.escape(_quoted(equals))
        case bool() | None:
            return json.dumps(equals).encode()
        case int():
            # A fraction or an exponent may spell it as well; 0 may have a sign.
            digits = b"-?0" if equals == 0 else str(equals).encode()
            return b"(?:%b(?![0-9])|-?[0-9]+[.eE])" % digits
        case float():
            return b"-?[0-9]"


def _quoted(text: str) -> bytes:
    """Quote a text of a rule, in bytes, as JSON spells it without escapes."""
    return b'"%b"' % _bytes(text)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _header_name(value: object) -> str:
    """Return a header rule's name in lower case; raise Invalid for anything else."""
    if not isinstance(value, str) or not 0 < len(value) <= NAME_LIMIT:
        remedy = f"must be text of 1 to {NAME_LIMIT} characters."
        raise Invalid("/header", f"header {remedy}")
    try:
        return comparable_name(value)
    except UnicodeEncodeError:
        remedy = "holds half a surrogate pair: remove it."
        raise Invalid("/header", f"header {remedy}") from None


def _text(value: object) -> str:
    """Return a rule's text; raise Invalid for anything else, or too long a one."""
    if not isinstance(value, str) or len(value) > TEXT_LIMIT:
        remedy = f"must be text of at most {TEXT_LIMIT} characters."
        raise Invalid("/equals", f"equals {remedy}")
    return value


def _pointer(value: object) -> str:
    """Return a rule's JSON Pointer; raise Invalid for anything else."""
    if not isinstance(value, str) or len(value) > POINTER_LIMIT:
        remedy = f"must be text of at most {POINTER_LIMIT} characters."
        raise Invalid("/pointer", f"pointer {remedy}")
    if (value and not value.startswith("/")) or _BROKEN_ESCAPE.search(value):
        remedy = "is no JSON Pointer: send it like /order/id, with ~1 for / in a name."
        raise Invalid("/pointer", f"pointer {remedy}")
    return value


def _scalar(value: object) -> Scalar:
    """Return a rule's JSON scalar; raise Invalid for anything else."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int) and abs(value) < 10**MOST_DIGITS:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    remedy = "must be text, a finite number, true, false or null."
    raise Invalid("/equals", f"equals {remedy}")
