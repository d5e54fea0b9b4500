"""The wire between a consumer and Poisonweb: reports and skips, as JSON and as values.

`to_wire` makes the JSON object of one report and `parse_failure`, `parse_confirmation`,
`parse_counter` and `parse_heartbeat` read it back; reading what was written gives an
equal value. `parse_skip` reads a skip of Poisonweb's list. Unknown members are ignored,
and null means absent.

Texts of a *message* (bookmark, message id, content type, redrive header, exception
texts) may hold any character, NUL and lone surrogates too. Names of a *consumer* may
not.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeVar
from uuid import UUID

# Set by a redrive on the message it sends: the redrive's id and a signature.
REDRIVE_HEADER = "x-poisonweb-redrive"

# Added to a dead letter by the consumer that gives up. Values are UTF-8 text.
CAUSE_HEADER = "x-poison-cause"  # one of `Cause`
EXCEPTION_TYPE_HEADER = "x-exception-type"  # as in `Raised`
EXCEPTION_MESSAGE_HEADER = "x-exception-message"
EXCEPTION_TRACEBACK_HEADER = "x-exception-traceback"
ORIGINAL_BOOKMARK_HEADER = "x-original-bookmark"  # in the topic it was read from
CONSUMER_GROUP_HEADER = "x-consumer-group"
CLIENT_NAME_HEADER = "x-client-name"
ATTEMPTS_HEADER = "x-attempts"  # decimal: how often it was started
FAILED_AT_HEADER = "x-failed-at"  # ISO-8601 with a zone
HANDLER_VERSION_HEADER = "x-handler-version"  # the release that failed

DEAD_LETTER_HEADERS = (
    CAUSE_HEADER,
    EXCEPTION_TYPE_HEADER,
    EXCEPTION_MESSAGE_HEADER,
    EXCEPTION_TRACEBACK_HEADER,
    ORIGINAL_BOOKMARK_HEADER,
    CONSUMER_GROUP_HEADER,
    CLIENT_NAME_HEADER,
    ATTEMPTS_HEADER,
    FAILED_AT_HEADER,
    HANDLER_VERSION_HEADER,
)

NAME_LIMIT = 255
# Room for a bookmark of 100 KB, and a limit for each report.
TEXT_LIMIT = 131_072
REDRIVE_LIMIT = 200
HEADERS_LIMIT = 10_000
COUNT_LIMIT = 2**31 - 1
SEQUENCE_LIMIT = 2**62
HISTOGRAM_BUCKETS = 64

# C0, DEL and C1, and the surrogates that only broken text holds alone.
_UNCLEAN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

# Producers can set any header: values of another shape are not ours.
_REDRIVE = re.compile(
    "([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})[.][A-Za-z0-9_-]{1,128}"
)

_Value = TypeVar("_Value")
_Choice = TypeVar("_Choice", bound=StrEnum)
_Parser = Callable[[object, str], _Value]
_Headers = tuple[tuple[bytes, bytes], ...]


class Invalid(Exception):
    """A report breaks the contract."""

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(detail)
        self.pointer = pointer
        self.detail = detail


class Cause(StrEnum):
    """Why a message became poison."""

    FATAL = "fatal"
    EXHAUSTED = "exhausted"
    CRASH = "crash"
    HANG = "hang"
    EXPIRED = "expired"
    REJECTED = "rejected"
    MAX_DEQUEUE_COUNT = "max_dequeue_count"
    UNDECODABLE = "undecodable"
    OVERSIZE = "oversize"
    MANUAL = "manual"
    UNKNOWN = "unknown"


class GuardState(StrEnum):
    """What a guard does: paused it takes no message, holding it waits for Poisonweb."""

    RUNNING = "running"
    PAUSED = "paused"
    HOLDING = "holding"
    STOPPING = "stopping"


class MatcherKind(StrEnum):
    """What a skip matches its messages by."""

    BOOKMARK = "bookmark"
    MESSAGE_ID = "message_id"
    BODY_DIGEST = "body_digest"
    RULE = "rule"


@dataclass(frozen=True, kw_only=True, slots=True)
class Raised:
    """The exception a handler raised, as text."""

    type: str
    message: str = ""
    traceback: str = ""

    def to_wire(self) -> dict[str, object]:
        """Return the JSON object of a report's `exception`."""
        return {
            "type": self.type,
            "message": self.message,
            "traceback": self.traceback,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class OversizeBody:
    """A body that no request can hold: its size in bytes, and its SHA-256."""

    size: int
    sha256: bytes

    def to_wire(self) -> dict[str, object]:
        """Return the JSON object of a report's `oversize_body`."""
        return {"size": self.size, "sha256": self.sha256.hex()}


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureReport:
    """One message that its consumer could not process, whole.

    `replays` says that the broker delivers the message again to clients that read its
    topic from an earlier place. `suspected` says that the consumer itself may be sick:
    the message is stored, and no other consumer skips it, until the same report comes
    without `suspected`. `suspect` lets the server wait for the other consumers of the
    group first, where there are any.

    With `oversize_body` the body is left out, and empty here: the server notes and
    rejects such a report, because the message stays with its broker.

    `bookmark` and `message_id` are the broker's own and opaque. `attempts`, `failures`
    and `crashes` are the consumer's counts, `dequeue_count` is the broker's. `redrive`
    is the value of the message's `REDRIVE_HEADER`.
    """

    report_id: UUID
    topic: str
    consumer_group: str
    client_name: str
    bookmark: str
    body: bytes
    headers: _Headers
    cause: Cause
    attempts: int
    failures: int
    crashes: int
    first_failed_at: datetime
    failed_at: datetime
    sub_id: str | None = None
    publisher: str | None = None
    seq: int | None = None
    message_id: str | None = None
    content_type: str | None = None
    exception: Raised | None = None
    dequeue_count: int | None = None
    handler_version: str | None = None
    host: str | None = None
    redrive: str | None = None
    replays: bool = False
    suspected: bool = False
    suspect: bool = True
    oversize_body: OversizeBody | None = None

    def without_body(self) -> FailureReport:
        """Return the failure report with `oversize_body` instead of its body."""
        digest = hashlib.sha256(self.body).digest()
        left_out = OversizeBody(size=len(self.body), sha256=digest)
        return replace(self, body=b"", oversize_body=left_out)

    def to_wire(self) -> dict[str, object]:
        """Return a failure report's JSON object, a member of POST /failures."""
        return _present(
            report_id=str(self.report_id),
            topic=self.topic,
            consumer_group=self.consumer_group,
            client_name=self.client_name,
            sub_id=self.sub_id,
            bookmark=self.bookmark,
            publisher=self.publisher,
            seq=self.seq,
            message_id=self.message_id,
            body=None if self.oversize_body else _base64(self.body),
            oversize_body=self.oversize_body and self.oversize_body.to_wire(),
            content_type=self.content_type,
            headers=[[_header_text(name), _base64(v)] for name, v in self.headers],
            cause=self.cause.value,
            exception=self.exception.to_wire() if self.exception else None,
            attempts=self.attempts,
            failures=self.failures,
            crashes=self.crashes,
            dequeue_count=self.dequeue_count,
            first_failed_at=self.first_failed_at.isoformat(),
            failed_at=self.failed_at.isoformat(),
            handler_version=self.handler_version,
            host=self.host,
            redrive=self.redrive,
            replays=self.replays or None,
            suspected=self.suspected or None,
            suspect=None if self.suspect else False,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Confirmation:
    """A redriven message was handled; `redrive` is its header's value."""

    redrive: str
    topic: str
    consumer_group: str
    client_name: str
    at: datetime

    def to_wire(self) -> dict[str, object]:
        """Return a confirmation's JSON object, a member of POST /confirmations."""
        return {
            "redrive": self.redrive,
            "topic": self.topic,
            "consumer_group": self.consumer_group,
            "client_name": self.client_name,
            "at": self.at.isoformat(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterReport:
    """The counts of one process for one topic in one minute.

    `reporter` identifies the process and `sequence` numbers its reports: a pair counts
    once. `duration_ms_hist` holds (bucket, count) pairs in bucket order; bucket b
    counts the durations of 2^b up to 2^(b+1) milliseconds, bucket 0 the shorter too.
    """

    reporter: UUID
    sequence: int
    topic: str
    consumer_group: str
    client_name: str
    minute: datetime
    handled: int
    failed: int
    skipped: int
    retried: int
    duration_ms_hist: tuple[tuple[int, int], ...]

    def to_wire(self) -> dict[str, object]:
        """Return a counter report's JSON object, a member of POST /counters."""
        return {
            "reporter": str(self.reporter),
            "sequence": self.sequence,
            "topic": self.topic,
            "consumer_group": self.consumer_group,
            "client_name": self.client_name,
            "minute": self.minute.isoformat(),
            "handled": self.handled,
            "failed": self.failed,
            "skipped": self.skipped,
            "retried": self.retried,
            "duration_ms_hist": {str(b): count for b, count in self.duration_ms_hist},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardHeartbeat:
    """The state of one guard, as it reports it; the newest by `at` counts.

    `version` is the SDK's. `skips_age_s` is the seconds since its skip list was last
    current, None while it has none. `spooled` counts reports on its disk, `suspected`
    counts withheld messages. `failing_since` is when the failures began that made a
    paused guard pause.
    """

    reporter: UUID
    topic: str
    consumer_group: str
    client_name: str
    host: str | None
    version: str | None
    handler_version: str | None
    state: GuardState
    detail: str
    skips_age_s: float | None
    spooled: int
    suspected: int
    journal: bool
    failing_since: datetime | None
    at: datetime

    def to_wire(self) -> dict[str, object]:
        """Return a guard heartbeat's JSON object, one of `guards` in POST /counters."""
        since = self.failing_since
        return {
            "reporter": str(self.reporter),
            "topic": self.topic,
            "consumer_group": self.consumer_group,
            "client_name": self.client_name,
            "host": self.host,
            "version": self.version,
            "handler_version": self.handler_version,
            "state": self.state.value,
            "detail": self.detail,
            "skips_age_s": self.skips_age_s,
            "spooled": self.spooled,
            "suspected": self.suspected,
            "journal": self.journal,
            "failing_since": None if since is None else since.isoformat(),
            "at": self.at.isoformat(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class AppliedSkip:
    """A report that a consumer skipped messages; the same `report` counts once.

    If `handled` is true, the consumer handled the message, so its skip is not needed.
    """

    skip: int
    consumer_group: str
    client_name: str
    count: int
    last_at: datetime
    report: UUID | None
    handled: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """A rule or identity of messages to skip; `id` is None until Poisonweb sets it.

    `value` is the bookmark, the message id or the hexadecimal SHA-256 of the body; of a
    rule it is its JSON. None as `consumer_group` or `handler_version` means all.
    `redrive` is the id of the redrive whose failure made it, and which it applies to.
    """

    topic: str
    kind: MatcherKind
    value: str
    id: int | None = None
    consumer_group: str | None = None
    handler_version: str | None = None
    expires_at: datetime | None = None
    reason: str = ""
    by: str = ""
    at: datetime | None = None
    poison: int | None = None
    redrive: str | None = None


def parse_failure(value: object) -> FailureReport:
    """Parse a failure report in `failures`; raise `Invalid` with place and remedy."""
    item = _Members(value)
    oversize_body = item.optional("oversize_body", _oversize_body)
    return FailureReport(
        report_id=item.required("report_id", _uuid),
        topic=item.required("topic", _name),
        consumer_group=item.required("consumer_group", _name),
        client_name=item.required("client_name", _name),
        sub_id=item.optional("sub_id", _name),
        bookmark=item.required("bookmark", _bookmark),
        publisher=item.optional("publisher", _name),
        seq=item.optional("seq", _sequence),
        message_id=item.optional("message_id", _text),
        body=b"" if oversize_body else item.required("body", _bytes),
        oversize_body=oversize_body,
        content_type=item.optional("content_type", _text),
        headers=item.required("headers", _headers),
        cause=item.required("cause", _cause),
        exception=item.optional("exception", _raised),
        attempts=item.required("attempts", _count),
        failures=item.required("failures", _count),
        crashes=item.required("crashes", _count),
        dequeue_count=item.optional("dequeue_count", _count),
        first_failed_at=item.required("first_failed_at", _moment),
        failed_at=item.required("failed_at", _moment),
        handler_version=item.optional("handler_version", _name),
        host=item.optional("host", _name),
        # Producers can set any header: the signature check finds forged ones, which
        # must not reject the report, however long they are.
        redrive=item.optional("redrive", _text),
        replays=item.optional("replays", _flag) or False,
        suspected=item.optional("suspected", _flag) or False,
        suspect=item.optional("suspect", _flag) is not False,
    )


def parse_confirmation(value: object) -> Confirmation:
    """Read one member of `confirmations`, of a handled redrive; raise `Invalid`."""
    item = _Members(value)
    return Confirmation(
        redrive=item.required("redrive", _redrive),
        topic=item.required("topic", _name),
        consumer_group=item.required("consumer_group", _name),
        client_name=item.required("client_name", _name),
        at=item.required("at", _moment),
    )


def parse_counter(value: object) -> CounterReport:
    """Read a counter report in `counters`; raise `Invalid` like `parse_failure`."""
    item = _Members(value)
    return CounterReport(
        reporter=item.required("reporter", _uuid),
        sequence=item.required("sequence", _sequence),
        topic=item.required("topic", _name),
        consumer_group=item.required("consumer_group", _name),
        client_name=item.required("client_name", _name),
        minute=item.required("minute", _minute),
        handled=item.required("handled", _count),
        failed=item.required("failed", _count),
        skipped=item.required("skipped", _count),
        retried=item.required("retried", _count),
        duration_ms_hist=item.required("duration_ms_hist", _histogram),
    )


def parse_applied(value: object) -> AppliedSkip:
    """Read a count of an applied skip; raise `Invalid` like `parse_failure`."""
    item = _Members(value)
    return AppliedSkip(
        skip=item.required("skip", _sequence),
        consumer_group=item.required("consumer_group", _name),
        client_name=item.required("client_name", _name),
        count=item.required("count", _count),
        last_at=item.required("last_at", _moment),
        report=item.optional("report", _uuid),
        handled=item.optional("handled", _flag) or False,
    )


def parse_heartbeat(value: object) -> GuardHeartbeat:
    """Read a guard's heartbeat in `guards`; raise `Invalid` like `parse_failure`."""
    item = _Members(value)
    return GuardHeartbeat(
        reporter=item.required("reporter", _uuid),
        topic=item.required("topic", _name),
        consumer_group=item.required("consumer_group", _name),
        client_name=item.required("client_name", _name),
        host=item.optional("host", _name),
        version=item.optional("version", _name),
        handler_version=item.optional("handler_version", _name),
        state=item.required("state", _guard_state),
        detail=item.optional("detail", _text) or "",
        skips_age_s=item.optional("skips_age_s", _seconds),
        spooled=item.required("spooled", _count),
        suspected=item.required("suspected", _count),
        journal=item.required("journal", _flag),
        failing_since=item.optional("failing_since", _moment),
        at=item.required("at", _moment),
    )


def parse_skip(value: object) -> Skip:
    """Read one skip of Poisonweb's list; raise `Invalid` like `parse_failure`."""
    item = _Members(value)
    kind, matched = item.required("matcher", _matcher)
    return Skip(
        id=item.required("id", _sequence),
        topic=item.required("topic", _name),
        kind=kind,
        value=matched,
        consumer_group=item.optional("consumer_group", _name),
        handler_version=item.optional("handler_version", _name),
        expires_at=item.optional("expires_at", _moment),
        reason=item.optional("reason", _any_text) or "",
        by=item.optional("by", _any_text) or "",
        at=item.optional("at", _moment),
        poison=item.optional("poison", _sequence),
        redrive=item.optional("redrive", _any_text),
    )


def is_name(text: str) -> bool:
    """Tell whether a text is a valid name of a topic, group, client or the like."""
    is_long_enough = bool(text.strip()) and len(text) <= NAME_LIMIT
    return is_long_enough and not has_control_character(text)


def has_control_character(text: str) -> bool:
    """Tell whether a text holds a control character or half a surrogate pair."""
    return not text.isprintable() and _UNCLEAN.search(text) is not None


def redrive_id_of(value: str | None) -> str | None:
    """Return the redrive id in a header value; None if the value is not ours."""
    match = _REDRIVE.fullmatch(value or "")
    return match[1] if match else None


def uuid_of(text: str) -> UUID | None:
    """Return the UUID that a text spells as 8-4-4-4-12 digits; None for other texts."""
    text = text.lower()
    try:
        parsed = UUID(text)
    except ValueError:
        return None
    # UUID() also reads braces, missing hyphens and digits of other scripts.
    return parsed if str(parsed) == text else None


class _Members:
    """The members of one JSON object; each is parsed with its pointer."""

    def __init__(self, value: object, pointer: str = "") -> None:
        if not isinstance(value, Mapping):
            what = _label(pointer) or "the item"
            raise Invalid(pointer, f"{what} must be a JSON object.")
        self._value = value
        self._pointer = pointer

    def required(self, name: str, parser: _Parser[_Value]) -> _Value:
        """Parse a JSON member; raise Invalid if it is missing, null or wrong."""
        member = self.optional(name, parser)
        if member is None:
            pointer = f"{self._pointer}/{name}"
            raise Invalid(pointer, f"{_label(pointer)} is missing: send it.")
        return member

    def optional(self, name: str, parser: _Parser[_Value]) -> _Value | None:
        """Parse a JSON member; None if missing or null, Invalid if it is wrong."""
        value = self._value.get(name)
        return None if value is None else parser(value, f"{self._pointer}/{name}")


def _label(pointer: str) -> str:
    """Return a pointer as people write it: "matcher.kind" for "/matcher/kind"."""
    return pointer[1:].replace("/", ".")


def _wrong(pointer: str, remedy: str) -> Invalid:
    """Build the Invalid of a JSON member, from its pointer and a remedy."""
    return Invalid(pointer, f"{_label(pointer)} {remedy}")


def _any_text(value: object, pointer: str) -> str:
    """Return a text of any length; raise Invalid for anything else."""
    if not isinstance(value, str):
        raise _wrong(pointer, "must be text: send a JSON string.")
    return value


def _text(value: object, pointer: str) -> str:
    """Return a text of up to TEXT_LIMIT characters; raise Invalid for others."""
    text = _any_text(value, pointer)
    if len(text) > TEXT_LIMIT:
        raise _wrong(pointer, f"is longer than {TEXT_LIMIT} characters: shorten it.")
    return text


def _bookmark(value: object, pointer: str) -> str:
    """Return a failure report's bookmark, not empty; raise Invalid for any other."""
    text = _text(value, pointer)
    if not text:
        raise _wrong(pointer, "is empty: send the broker's id of the message.")
    return text


def _redrive(value: object, pointer: str) -> str:
    """Return a text that may be a redrive header's value; raise Invalid for others."""
    text = _text(value, pointer)
    if len(text) > REDRIVE_LIMIT:
        remedy = f"is no value of the header {REDRIVE_HEADER}: send it unchanged."
        raise _wrong(pointer, remedy)
    return text


def _name(value: object, pointer: str) -> str:
    """Return a valid name of a topic, group or the like; raise Invalid for others."""
    text = _any_text(value, pointer)
    if is_name(text):
        return text
    if not text.strip() or len(text) > NAME_LIMIT:
        raise _wrong(pointer, f"must be 1 to {NAME_LIMIT} characters long.")
    raise _wrong(
        pointer, "holds a control character or half a surrogate pair: remove it."
    )


def _choice(value: object, pointer: str, choices: type[_Choice]) -> _Choice:
    """Return the member of an enumeration that a text names; else raise Invalid."""
    text = _any_text(value, pointer)
    try:
        return choices(text)
    except ValueError:
        remedy = f"is unknown: send one of {', '.join(choices)}."
        raise _wrong(pointer, remedy) from None


def _cause(value: object, pointer: str) -> Cause:
    """Return the cause that a failure report's text names; raise Invalid for others."""
    return _choice(value, pointer, Cause)


def _guard_state(value: object, pointer: str) -> GuardState:
    """Return the guard state that a heartbeat's text names; else raise Invalid."""
    return _choice(value, pointer, GuardState)


def _matcher(value: object, pointer: str) -> tuple[MatcherKind, str]:
    """Return the kind and the value of a JSON skip's matcher, a rule as JSON text."""
    item = _Members(value, pointer)
    kind = item.required("kind", _kind)
    if kind is MatcherKind.RULE:
        return kind, item.required("value", _json)
    if kind is MatcherKind.BODY_DIGEST:
        return kind, item.required("value", _digest)
    return kind, item.required("value", _text)


def _kind(value: object, pointer: str) -> MatcherKind:
    """Return the matcher kind that a text names; raise Invalid for others."""
    return _choice(value, pointer, MatcherKind)


def _json(value: object, pointer: str) -> str:
    """Return a skip rule's JSON object as sorted text; raise Invalid for any other."""
    if not isinstance(value, Mapping):
        raise _wrong(pointer, "must be a JSON object.")
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _digest(value: object, pointer: str) -> str:
    """Return a SHA-256 in hexadecimal; raise Invalid for anything else."""
    text = _any_text(value, pointer)
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise _wrong(pointer, "is no SHA-256: send 64 hexadecimal digits.")
    return text


def _uuid(value: object, pointer: str) -> UUID:
    """Parse a UUID; raise Invalid for anything else."""
    parsed = uuid_of(_any_text(value, pointer))
    if parsed is None:
        raise _wrong(pointer, "is no UUID: send it as 8-4-4-4-12 hexadecimal digits.")
    return parsed


def _flag(value: object, pointer: str) -> bool:
    """Return true or false; raise Invalid for anything else."""
    if not isinstance(value, bool):
        raise _wrong(pointer, "must be true or false.")
    return value


def _integer(value: object, pointer: str, limit: int) -> int:
    """Return a whole number from 0 to a limit; raise Invalid for anything else."""
    # A bool is an int to Python and a different thing to JSON.
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(pointer, "must be a whole number.")
    if not 0 <= value <= limit:
        raise _wrong(pointer, f"must be from 0 to {limit}.")
    return value


def _count(value: object, pointer: str) -> int:
    """Return a whole number up to COUNT_LIMIT; raise Invalid for others."""
    return _integer(value, pointer, COUNT_LIMIT)


def _sequence(value: object, pointer: str) -> int:
    """Return a whole number up to SEQUENCE_LIMIT; raise Invalid for others."""
    return _integer(value, pointer, SEQUENCE_LIMIT)


def _seconds(value: object, pointer: str) -> float:
    """Parse a heartbeat's number of seconds, 0 or more; raise Invalid for others."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(pointer, "must be a number of seconds.")
    # JSON as Python reads it has NaN and Infinity, too; neither is within the limits.
    if not 0 <= value <= COUNT_LIMIT:
        raise _wrong(pointer, f"must be from 0 to {COUNT_LIMIT} seconds.")
    return float(value)


def _moment(value: object, pointer: str) -> datetime:
    """Parse a time with its zone, to UTC; raise Invalid for anything else."""
    text = _any_text(value, pointer)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _no_moment(pointer) from None
    if moment.tzinfo is None:
        raise _wrong(pointer, "has no time zone: send it in UTC, ending in Z.")
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # the first hours of year 1, the last of year 9999
        raise _no_moment(pointer) from None


def _no_moment(pointer: str) -> Invalid:
    """Build the Invalid of a JSON member whose text is no time."""
    remedy = "is no time of the years 1 to 9999: send it like 2026-11-20T09:30:00Z."
    return _wrong(pointer, remedy)


def _minute(value: object, pointer: str) -> datetime:
    """Parse the first moment of a minute; raise Invalid for others."""
    moment = _moment(value, pointer)
    if moment.second or moment.microsecond:
        raise _wrong(pointer, "is within a minute: send the minute's first moment.")
    return moment


def _bytes(value: object, pointer: str) -> bytes:
    """Decode base64; raise Invalid for anything else."""
    text = _any_text(value, pointer)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        remedy = "is not base64: send the bytes in the standard alphabet, with padding."
        raise _wrong(pointer, remedy) from None


def _oversize_body(value: object, pointer: str) -> OversizeBody:
    """Parse a failure report's `oversize_body`: the body's size and SHA-256."""
    item = _Members(value, pointer)
    return OversizeBody(
        size=item.required("size", _sequence),
        sha256=bytes.fromhex(item.required("sha256", _digest)),
    )


def _base64(value: bytes) -> str:
    """Encode bytes as base64 text."""
    return base64.b64encode(value).decode("ascii")


def _headers(value: object, pointer: str) -> _Headers:
    """Parse a message's headers, [name, base64 value] pairs, to pairs of bytes."""
    if not isinstance(value, list):
        raise _wrong(pointer, "must be a list of [name, base64 value] pairs.")
    if len(value) > HEADERS_LIMIT:
        raise _wrong(pointer, f"has more than {HEADERS_LIMIT} headers.")
    return tuple(_header(pair, f"{pointer}/{n}") for n, pair in enumerate(value))


def _header(value: object, pointer: str) -> tuple[bytes, bytes]:
    """Parse one [name, base64 value] pair to a pair of bytes."""
    if not isinstance(value, list) or len(value) != 2:
        raise _wrong(pointer, "must be a pair: [name, base64 value].")
    name, content = value
    name = _header_name(_any_text(name, f"{pointer}/0"))
    return name, _bytes(content, f"{pointer}/1")


def _header_text(name: bytes) -> str:
    """Decode a header's name for JSON; `_header_name` gives the same bytes back."""
    # JSON has no bytes: what is not UTF-8 travels as lone surrogates and comes back.
    return name.decode("utf-8", "surrogateescape")


def _header_name(text: str) -> bytes:
    """Encode a header's name from JSON, lone surrogates to the bytes they stand for."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return text.encode("utf-8", "surrogatepass")


def _raised(value: object, pointer: str) -> Raised:
    """Parse `exception`: type, message and traceback."""
    item = _Members(value, pointer)
    return Raised(
        type=item.required("type", _any_text),
        message=item.required("message", _any_text),
        traceback=item.required("traceback", _any_text),
    )


def _histogram(value: object, pointer: str) -> tuple[tuple[int, int], ...]:
    """Parse a histogram of handling times, bucket to count, to pairs in order."""
    if not isinstance(value, Mapping):
        raise _wrong(pointer, "must be an object of log2 bucket to count.")
    return tuple(sorted(_buckets(value, pointer)))


def _buckets(value: Mapping[object, object], pointer: str) -> Iterable[tuple[int, int]]:
    """Yield each bucket of a histogram with its count.

    Raise Invalid for any other bucket, or a wrong count.
    """
    buckets = {str(bucket): bucket for bucket in range(HISTOGRAM_BUCKETS)}
    for name, count in value.items():
        if name not in buckets:
            last = HISTOGRAM_BUCKETS - 1
            raise _wrong(pointer, f'has a bucket that is not one of "0" to "{last}".')
        yield buckets[str(name)], _count(count, f"{pointer}/{name}")


def _present(**members: object) -> dict[str, object]:
    """Return the members of a JSON object that are not None."""
    return {name: value for name, value in members.items() if value is not None}
