"""The data of the message pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self
from uuid import UUID

from django.db.models import Q

from apps.audit.models import Entry
from apps.audit.services import Action
from apps.core.statement_timeouts import TooSlow
from apps.core.text_cleaning import readable
from apps.dashboard.keyset_pagination import (
    BoundedCount,
    ListCursor,
    ListPage,
    bounded_count,
    page,
)
from apps.dashboard.list_params import ListParams
from apps.dashboard.presentation.message_body import BodyView, view
from apps.dashboard.selectors import skips
from apps.dashboard.selectors.previous_and_next_row import Neighbours, neighbours
from apps.dashboard.selectors.skips import SkipRow
from apps.outbox.models import Outbox
from apps.poison import message_contents, origin_queue_mismatch
from apps.poison.headers_readable_without_body_right import is_public
from apps.poison.message_contents import FailureExcerpt, FirstHeaders, RevealedMessage
from apps.poison.models import Failure, Poison, Redrive
from apps.poison.query_language import Query, Term
from apps.poison.states import DisplayState
from apps.redelivery.services import delivery_content_access
from apps.team.rights import Principal, Scope
from apps.triage.services.message_audit_filter import operations_on
from poisonguard.outbox.sweeping import quarantine_report_text_and_cause

MOST_SHOWN = 20
MASKED = "••••••"
SHOWN_BYTES_OF_HEADER = 1024
# Parts of a header name that mark a secret, and whole words that do.
_SENSITIVE = re.compile(
    "auth|cookie|token|secret|passw|credential|apikey|accesskey|privatekey|accountkey"
    "|sharedkey|bearer|signature|sessionid|connectionstring"
)
_SENSITIVE_WORDS = frozenset({"jwt", "pwd", "sas", "sig", "otp", "pin", "ssn", "dsn"})
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
ROW_DECISIONS = (Action.OUTBOX_ROW_RELEASED, Action.OUTBOX_ROW_DROPPED)
# Of the rows of one outbox; the others are on its own trail.
MOST_ROW_DECISIONS = 1_000
# As `python -m poisonguard.sweeper` reports a row of its outbox.
_ROW_BOOKMARK = re.compile(
    r"(?P<outbox>.+):(?P<number>[0-9]{1,19})", re.ASCII | re.DOTALL
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageList:
    """A page of messages; only an empty one has `last_failed_at`, of any message."""

    query: Query
    page: ListPage[Poison]
    total: BoundedCount | TooSlow
    last_failed_at: datetime | None

    @property
    def is_of_dropped(self) -> bool:
        """Tell whether the list's query asks for dropped messages."""
        return self.query.value_of("is") == DisplayState.DROPPED


@dataclass(frozen=True, kw_only=True, slots=True)
class HeaderRows:
    """Names and values of headers for a page; `more` counts those without a row."""

    rows: Sequence[tuple[str, str]]
    more: int

    @classmethod
    def of(cls, headers: FirstHeaders, show: Callable[[bytes, bytes], str]) -> Self:
        """Build rows of a message's first headers by `show`; count the others."""
        return cls(
            rows=[(_start(name), show(name, value)) for name, value in headers.pairs],
            more=headers.total - len(headers.pairs),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageDetail:
    message: Poison
    failures: list[FailureExcerpt]
    redrives: list[Redrive]
    entries: list[Entry]
    headers: HeaderRows
    skips: list[SkipRow]
    neighbours: Neighbours
    given_back_to: str = ""
    origin: str = ""
    delivery: UUID | None = None
    deliveries: Mapping[str, UUID] = field(default_factory=dict)
    outbox_row: int | None = None  # of an outbox that is not registered here
    outbox: str = ""  # the registered one that has its row
    body: BodyView | None = None
    content_type: str | None = None

    @property
    def redrives_with_deliveries(self) -> list[tuple[Redrive, UUID | None]]:
        """Pair each requeue with the delivery that it became, if it did."""
        return [(each, self.deliveries.get(each.bookmark)) for each in self.redrives]

    @property
    def failures_listed(self) -> int:
        """Sum how many failures the listed failure excerpts of a message stand for."""
        return sum(excerpt.failure.times for excerpt in self.failures)


def find(params: ListParams, principal: Principal) -> MessageList:
    """List a page of the messages that match the parameters and are visible."""
    return _matching(params.query, params.cursor, principal)


def of_problem(
    problem_id: int, params: ListParams, principal: Principal
) -> MessageList:
    """List a page of a problem's messages that match the parameters."""
    within = Query((*params.query.terms, Term("problem", str(problem_id))))
    return _matching(within, params.cursor, principal)


def _matching(
    query: Query, cursor: ListCursor | None, principal: Principal
) -> MessageList:
    """List a page of the visible messages that match a query, with a count."""
    poisons = Poison.objects.on_topics(principal.topics).matching(query)
    rows = poisons.select_related("topic")
    listed = page(rows, field="last_failed_at", cursor=cursor)
    return MessageList(
        query=query,
        page=listed,
        total=bounded_count(poisons),
        last_failed_at=None if listed.rows else last_failed_at(principal),
    )


def last_failed_at(principal: Principal) -> datetime | None:
    """Return when a visible message failed last; None without any message.

    An empty list of messages or problems shows it.
    """
    poisons = Poison.objects.on_topics(principal.topics).recent_first()
    return poisons.values_list("last_failed_at", flat=True).first()


def one(message_id: int, principal: Principal, *, now: datetime) -> MessageDetail:
    """Load a message without its contents; raises Absent if it is not visible."""
    message = message_contents.visible(poison_id=message_id, principal=principal)
    first = message_contents.first_headers(poison_id=message_id)
    headers = HeaderRows.of(first, unrevealed_value)
    return _detail(message, principal, headers, now=now)


def page_of_revealed(
    revealed: RevealedMessage, principal: Principal, *, now: datetime
) -> MessageDetail:
    """Build a message's page with the headers and body that were revealed."""
    headers = HeaderRows.of(revealed.headers, revealed_value)
    return _detail(
        revealed.poison,
        principal,
        headers,
        now=now,
        body=view(revealed.content, size=revealed.size),
        content_type=revealed.content_type,
    )


def legible(name: bytes, value: bytes) -> tuple[str, str]:
    """Return a header's name and value as text; the value of a secret is masked."""
    return _start(name), revealed_value(name, value)


def revealed_value(name: bytes, value: bytes) -> str:
    """Return a header's value as text, or a mask if its name says it is a secret."""
    return MASKED if is_secret(readable(name)) else _start(value)


def unrevealed_value(name: bytes, value: bytes) -> str:
    """Return a header's value, or a mask unless the header is public."""
    return _start(value) if is_public(name) else MASKED


def _start(text: bytes) -> str:
    """Format the start of a header's name or value, with the size of a longer one."""
    if len(text) <= SHOWN_BYTES_OF_HEADER:
        return readable(text)
    return f"{readable(text[:SHOWN_BYTES_OF_HEADER])}… ({len(text):,} bytes)"


def is_secret(header: str) -> bool:
    """Check whether a header's name says that its value is a secret.

    The name may be written x-session-id, x_session_id, sessionId or SESSIONID.
    """
    words = [word.lower() for word in _WORDS.findall(header)]
    if _SENSITIVE.search("".join(words)):
        return True
    return not _SENSITIVE_WORDS.isdisjoint(words)


def _detail(
    message: Poison,
    principal: Principal,
    headers: HeaderRows,
    *,
    now: datetime,
    body: BodyView | None = None,
    content_type: str | None = None,
) -> MessageDetail:
    """Load a message's failures, redrives, audit entries, skips and neighbours.

    The headers and body are passed in.
    """
    failures = Failure.objects.filter(poison=message)
    redrives = Redrive.objects.filter(poison=message).select_related("topic")
    same_problem = Poison.objects.on_topics(principal.topics).filter(
        problem=message.problem_id
    )
    newest = list(redrives.order_by("-n")[:MOST_SHOWN])
    deliveries = delivery_content_access.of_bookmarks(
        message.topic.name,
        [message.bookmark_text, *(redrive.bookmark for redrive in newest)],
        principal,
    )
    row = _outbox_row(message)
    outbox = "" if row is None else _registered_outbox(message)
    return MessageDetail(
        message=message,
        failures=message_contents.failures(failures, limit=MOST_SHOWN),
        redrives=newest,
        given_back_to=newest[0].queue if message.is_given_back else "",
        entries=_entries(message, row=row, outbox=outbox),
        headers=headers,
        skips=skips.of_message(message, now=now)
        if principal.may(Scope.SKIPS_READ)
        else [],
        neighbours=neighbours(same_problem, message, field="last_failed_at"),
        origin=origin_queue_mismatch.of(message.pk, topic=message.topic.native_name),
        delivery=deliveries.get(message.bookmark_text),
        deliveries=deliveries,
        outbox_row=None if outbox else row,
        outbox=outbox,
        body=body,
        content_type=content_type,
    )


def _outbox_row(message: Poison) -> int | None:
    """Return the number of the outbox row that a quarantined message came from.

    None for another message. Where the outbox is registered here, the row is settled
    from here, not by hand at the producer.
    """
    if message.error_type != quarantine_report_text_and_cause.EXCEPTION_TYPE:
        return None
    row = _ROW_BOOKMARK.fullmatch(message.bookmark_text)
    if row is None or row["outbox"] != message.consumer_group:
        return None
    return int(row["number"])


def _registered_outbox(message: Poison) -> str:
    """Name the outbox, registered here, that is a message's consumer; "" if none is."""
    outboxes = Outbox.objects.filter(topic__name=message.consumer_group)
    return outboxes.values_list("name", flat=True).first() or ""


def _entries(message: Poison, *, row: int | None, outbox: str) -> list[Entry]:
    """List the audit entries of a message, of operations on it and of its outbox row.

    The row's are among the newest decisions about rows of its outbox.
    """
    subjects = operations_on(message.pk, limit=MOST_SHOWN)
    about = Q(subject=f"poison:{message.pk}") | Q(subject__in=subjects)
    entries = list(Entry.objects.filter(about).order_by("-seq")[:MOST_SHOWN])
    if outbox:
        decisions = Entry.objects.filter(
            subject=f"outbox:{outbox}", action__in=ROW_DECISIONS
        )
        newest = decisions.order_by("-seq").values("seq")[:MOST_ROW_DECISIONS]
        entries += Entry.objects.filter(seq__in=newest, detail__row_id=row)
    return sorted(entries, key=lambda entry: entry.seq, reverse=True)[:MOST_SHOWN]
