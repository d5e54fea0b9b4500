"""Template tags and filters of all pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Literal

from django import template
from django.urls import reverse
from django.utils.html import escape, format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import slugify

from apps.audit.services import REASON_LIMIT
from apps.brokers import adapters
from apps.brokers.models import Broker
from apps.core import clock
from apps.core.statement_timeouts import TooSlow
from apps.dashboard.keyset_pagination import BoundedCount
from apps.dashboard.presentation import report_numbers
from apps.dashboard.presentation.audit_entry_sentences import sentence
from apps.dashboard.presentation.definitions import DEFINITIONS
from apps.dashboard.presentation.plurals import plural_of
from apps.dashboard.presentation.traceback_app_frames import app_frames
from apps.dashboard.selectors.triage_operations import OperationStatus, label_in
from apps.poison.models import Poison
from apps.poison.query_language import Query, Term
from apps.triage.models import Operation
from apps.triage.operation_states import ItemKindName, OperationState, Verb

register = template.Library()
register.filter(app_frames)
register.filter(label_in)
register.filter(sentence)

# Each state has a label, a glyph and a colour, so that one of them is enough.
PILLS = {
    "new": ("New", "●", "info"),
    "ongoing": ("Ongoing", "◐", "warn"),
    "quiet": ("Quiet", "○", ""),
    "open": ("Open", "●", "warn"),
    "sent": ("Sent", "→", "info"),
    "handled": ("Handled", "✓", "ok"),
    "dropped": ("Dropped", "✕", ""),
    "preview": ("Preview", "○", ""),
    "queued": ("Queued", "○", "info"),
    "running": ("Running", "→", "info"),
    "done": ("Done", "✓", "ok"),
    "cancelling": ("Cancelling", "✕", "warn"),
    "cancelled": ("Cancelled", "✕", ""),
}
PILLS |= {
    # Of positions and lanes.
    "current": ("Caught up", "✓", "ok"),
    "unread": ("No consumer", "○", ""),
    "behind": ("Behind", "◐", "warn"),
    "off": ("Off", "○", ""),
    "away": ("Broker away", "!", "danger"),
    "missing": ("Queue missing", "!", "danger"),
    # Same label, but no trouble: the first dead letter creates the queue.
    "expected": ("Queue missing", "○", ""),
    "silent": ("Silent", "◌", "warn"),
    # Of the components of the system, and of the nightly report.
    "up": ("Up", "✓", "ok"),
    "partly up": ("Not all up", "◐", "warn"),
    "stopped": ("Stopped", "!", "danger"),
    "short": ("Running short", "◐", "danger"),
    "mended": ("Mended", "◐", "warn"),
    "resting": ("All paused", "‖", ""),
    "late": ("Late", "◐", "warn"),
    "failed": ("Failed", "!", "danger"),
    "never": ("Not yet", "○", ""),
    "none": ("None", "○", ""),
    # Of redrives and items.
    "waiting": ("Waiting", "○", ""),
    "untouched": ("Untouched", "○", ""),
    "sending": ("Sending", "→", "info"),
    "unknown": ("Unknown", "?", "warn"),
    "moved": ("Moved", "⇥", "info"),
    "confirmed": ("Handled", "✓", "ok"),
    "recurred": ("Came back", "↺", "danger"),
    "refused": ("Refused", "!", "danger"),
    "partly refused": ("Partly refused", "◐", "warn"),
    "skipped": ("Skipped", "—", ""),
    "restored": ("Restored", "●", "warn"),
    "given back": ("Given back", "↩", ""),
    "captured again": ("Captured again", "●", "warn"),
    # Of operations that are over.
    "all came back": ("Done", "↺", "danger"),
    "some came back": ("Done", "↺", "warn"),
    "all skipped": ("Done, all skipped", "—", ""),
}
PILLS |= {
    # Of guards.
    "paused": ("Paused", "‖", "danger"),
    "holding": ("Holding", "◐", "warn"),
    "stopping": ("Stopping", "○", ""),
    # Of skips.
    "active": ("Active", "●", "info"),
    "removed": ("Removed", "✕", ""),
    "expired": ("Expired", "○", ""),
    "passed": ("Passed", "✓", "ok"),
    "suspected": ("Suspected", "?", "warn"),
    "handled": ("Handled", "✓", "ok"),
    "doubted": ("Doubted", "?", ""),
    # Of endpoints and their breakers.
    "enabled": ("Enabled", "✓", "ok"),
    "breaker open": ("Breaker open", "!", "danger"),
    # Of deliveries and their attempts.
    "trying": ("Being tried", "→", "info"),
    "forwarding": ("Being forwarded", "⇥", "info"),
    "delivered": ("Delivered", "✓", "ok"),
    "given_up": ("Given up", "!", "danger"),
    "due": ("Due now", "→", "info"),
    "forwarded": ("Forwarded", "⇥", ""),
    "succeeded": ("Succeeded", "✓", "ok"),
    # Of outboxes and their rows.
    "sweeping": ("Sweeping", "→", "ok"),
    "slowed": ("Slowed", "◐", "warn"),
    "broken": ("Failing", "!", "danger"),
    "unreachable": ("Database away", "!", "danger"),
    "duplicate": ("Duplicate", "=", ""),
    "quarantined": ("Quarantined", "!", "danger"),
    # Of people and keys.
    "usable": ("Usable", "✓", "ok"),
    "revoked": ("Revoked", "✕", ""),
    "disabled": ("Disabled", "✕", ""),
}
NOUNS: Mapping[str, str] = {
    ItemKindName.POISON: "message",
    ItemKindName.DELIVERY: "delivery",
}
VERBS: Mapping[str, str] = {
    Verb.REDRIVE: "Requeue",
    Verb.DROP: "Drop",
    Verb.RESTORE: "Restore",
    Verb.GIVE_BACK: "Give back",
    Verb.TRY_NOW: "Try {} now",
    Verb.GIVE_UP: "Give up on",
}
PAST_VERBS: Mapping[str, str] = {
    Verb.REDRIVE: "Requeued",
    Verb.DROP: "Dropped",
    Verb.RESTORE: "Restored",
    Verb.GIVE_BACK: "Gave back",
    Verb.TRY_NOW: "Hurried",
    Verb.GIVE_UP: "Gave up on",
}
# Where a long name may break: behind punctuation, and before a capital.
SEAMS = re.compile(r"(?<=[._:/$@-])(?=\w)|(?<=[a-z0-9])(?=[A-Z])")
UNITS = (("d", 86_400), ("h", 3600), ("m", 60))


@register.simple_tag
def pill(state: str, also: str = "") -> SafeString:
    """Render a state as a coloured pill with its label and, if passed, words after.

    An unknown state shows its own name.
    """
    label, glyph, colour = PILLS.get(state, (state.capitalize(), "·", ""))
    return format_html(
        '<span class="pill {}"><span aria-hidden="true">{}</span>{}</span>',
        colour,
        glyph,
        f"{label}, {also}" if also else label,
    )


@register.filter
def too_slow(figure: object) -> bool:
    """Tell whether a value stands for a number that Postgres took too long to count."""
    return isinstance(figure, TooSlow)


@register.simple_tag
def term(name: str, label: str = "") -> SafeString:
    """Show a number's label, with its definition on hover and a link to Help.

    A link can be reached by keyboard, and screen readers read its title.
    """
    definition = DEFINITIONS[name]
    return _with_definition(name, label or definition.label)


@register.simple_tag
def counted_pill(state: str) -> SafeString:
    """Render the pill of a state whose messages or items are counted next to it.

    It links to the state's definition in Help, if there is one.
    """
    return _with_definition(state, pill(state)) if state in DEFINITIONS else pill(state)


def _with_definition(name: str, text: str) -> SafeString:
    """Render a text as a link to a term's definition in Help, which hovering shows."""
    return format_html(
        '<a class="term" href="{}#{}" title="{}">{}</a>',
        reverse("help"),
        anchor(name),
        DEFINITIONS[name].means,
        text,
    )


@register.filter
def anchor(name: str) -> str:
    """Return the anchor of a term's definition on the Help page."""
    return f"means-{slugify(name)}"


@register.simple_tag
def means(name: str) -> str:
    """Return the text of Help's definition of a number or state."""
    return DEFINITIONS[name].means


@register.simple_tag
def reason_limit() -> int:
    """Return the most characters that a decision's reason may have."""
    return REASON_LIMIT


@register.filter
def state_in_words(status: OperationStatus) -> str:
    """Describe an operation's state, and how many messages came back, in plain text.

    Without a pill: "partly refused"; "done, 3 came back".
    """
    label = PILLS[status.state][0].lower()
    return f"{label}, {status.also}" if status.also else label


@register.filter
def operation_label(row: OperationStatus) -> str:
    """Describe an operation by what it will do, or, once finished, by what it did.

    A large undo has no number until a worker has selected its messages.
    """
    verb = row.operation.verb
    if row.operation.undo_of_id and not row.operation.taken:
        return f"{VERBS[verb]} what operation {row.operation.undo_of_id} dropped"
    words = VERBS if row.is_running else PAST_VERBS
    return _deed(words[verb], count_noun(row.messages, NOUNS[row.operation.kind]))


@register.filter
def paused_number(operations: Sequence[Operation]) -> int:
    """Count the operations of these that are paused."""
    return sum(each.state == OperationState.PAUSED for each in operations)


@register.filter
def item_noun(operation: Operation) -> str:
    """Return what an operation acts on: message or delivery."""
    return NOUNS[operation.kind]


@register.simple_tag
def deed(operation: Operation, number: int | None = None) -> str:
    """Say what an operation does, and to how many messages or deliveries.

    "Drop 3 messages", or, without a number, "Drop all that match".
    """
    what = "all that match"
    if number is not None:
        what = count_noun(number, NOUNS[operation.kind])
    return _deed(VERBS[operation.verb], what)


def _deed(words: str, what: str) -> str:
    """Join the words of an operation's verb and its object: "Drop" and "3 messages".

    The object may be put inside the words.
    """
    return words.format(what) if "{}" in words else f"{words} {what}"


@register.simple_tag
def took_too_long() -> SafeString:
    """Show a dash for a number that Postgres took too long to count."""
    return format_html(
        '<span class="too-slow" title="{why}">—<span class="only-heard">'
        " ({why})</span></span>",
        why="took too long to count just now",
    )


@register.simple_tag
def ago(moment: datetime | TooSlow | None, *, in_sentence: bool = False) -> SafeString:
    """Show a moment's age: 3h in a table; `in_sentence`, 3h ago."""
    if isinstance(moment, TooSlow):
        return took_too_long()
    if moment is None:
        return format_html("{}", "—")
    age = relative(clock.now() - moment)
    return format_html(
        '<time datetime="{}" title="{}" data-relative="{}">{}</time>',
        stamp(moment),
        utc(moment),
        "said" if in_sentence else "",
        in_words(age) if in_sentence else age,
    )


@register.simple_tag
def until(moment: datetime | TooSlow | None) -> SafeString:
    """Show the time that is left until a moment: in 3m; "now" if it is over."""
    if isinstance(moment, TooSlow):
        return took_too_long()
    if moment is None:
        return format_html("{}", "—")
    wait = relative(moment - clock.now())
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        stamp(moment),
        utc(moment),
        wait if wait == "now" else f"in {wait}",
    )


@register.simple_tag
def at(moment: datetime | None) -> SafeString:
    """Show a moment, with its exact time for scripts and on hover; "—" for None."""
    if moment is None:
        return format_html("{}", "—")
    return format_html('<time datetime="{}">{}</time>', stamp(moment), utc(moment))


@register.filter
def time_left(moment: datetime) -> str:
    """Describe the time until a moment, in whole days: 29 days left."""
    days = (moment - clock.now()).days
    return f"{count_noun(days, 'day')} left" if days > 0 else "less than a day left"


def stamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z"


def utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def relative(age: timedelta) -> str:
    """Format a moment's age in its largest unit: 3h; "now" if just now."""
    seconds = age.total_seconds()
    for unit, size in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return "now"


def in_words(age: str) -> str:
    return "just now" if age == "now" else f"{age} ago"


@register.filter
def number(value: int | BoundedCount | TooSlow | Literal[""] | None) -> str:
    """Format a count with commas; "—" for None or what took too long."""
    if isinstance(value, TooSlow):
        return took_too_long()
    # A template passes "" for a missing attribute.
    if value is None or value == "":
        return "—"
    return str(value) if isinstance(value, BoundedCount) else f"{value:,}"


@register.filter(name="counted")
def count_noun(value: int | BoundedCount | TooSlow, noun: str) -> str:
    """Count nouns in words: 1 message, 1,204 messages, 2 deliveries."""
    if isinstance(value, TooSlow):
        return format_html("{} {}", took_too_long(), plural_of(noun))
    one = value.is_one if isinstance(value, BoundedCount) else value == 1
    return f"{value} {noun}" if one else f"{number(value)} {plural_of(noun)}"


@register.filter
def percent(share: float | TooSlow | None) -> str:
    return (
        took_too_long() if isinstance(share, TooSlow) else report_numbers.percent(share)
    )


@register.filter(name="hex")
def hexadecimal(value: bytes) -> str:
    """Format bytes of a message as hexadecimal digits."""
    return bytes(value).hex()


@register.filter
def silent(message: Poison) -> bool:
    """Tell whether consumers did not confirm a redrive of a message in time."""
    return message.silent(clock.now())


@register.filter
def verb(name: str) -> str:
    """Return the label of an operation's verb, without an object."""
    return VERBS[name].replace("{} ", "").removesuffix(" on")


@register.simple_tag
def search(**terms: object) -> str:
    """Build the query of a search for messages: `{% search state is="open" %}`."""
    query = Query(tuple(Term(key, str(value)) for key, value in terms.items()))
    return "?" + urlencode({"q": str(query)})


@register.filter
def kind(broker: Broker) -> str:
    """Return the title of a broker's kind, such as its product's name."""
    return adapters.title_of(broker.kind)


@register.filter
def facts(detail: Mapping[str, object]) -> str:
    """Render the details of an audit entry as one line of text, without empty ones."""
    # The least important member comes last: the line may be cut.
    ordered = sorted(detail.items(), key=lambda pair: pair[0] == "as_of")
    members = {name: value for name, value in ordered if value not in (None, "", 0, [])}
    return " · ".join(f"{name} {_fact(value)}" for name, value in members.items())


def _fact(value: object) -> str:
    """Format a value of an audit entry: numbers with names, lists with commas."""
    if isinstance(value, Mapping):
        return ", ".join(f"{number} {name}" for name, number in value.items() if number)
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    return str(value)


@register.filter
def legible(text: object) -> SafeString:
    """Show untrusted text; invisible characters appear as their code points."""
    text = str(text)
    if text.isprintable():  # most texts: without a look at each character
        return escape(text)
    runs = groupby(text, key=_is_visible)
    pieces = (
        _visible_run(run) if is_visible else _code_points(run)
        for is_visible, run in runs
    )
    return format_html_join("", "{}", ((piece,) for piece in pieces))


@register.filter
def breakable(name: object) -> SafeString:
    """Show a long name that may break behind punctuation and before capitals."""
    pieces = ((legible(piece),) for piece in SEAMS.split(str(name)))
    return format_html_join(SafeString("<wbr>"), "{}", pieces)


def _is_visible(character: str) -> bool:
    return character.isprintable() or character in "\n\t"


def _visible_run(run: Iterable[str]) -> str:
    """Join characters of untrusted text that are all visible, without a change."""
    return "".join(run)


def _code_points(run: Iterable[str]) -> SafeString:
    """Show invisible characters by their code points."""
    marks = " ".join(f"U+{ord(character):04X}" for character in run)
    return format_html('<span class="unseen">{}</span>', marks)


@register.simple_tag
def sparkline(
    values: Sequence[int] | TooSlow,
    summary: str,
    *,
    wide: bool = False,
    top: int | None = None,
) -> SafeString:
    """Draw a bar per value, scaled to `top` (by default the highest value).

    Rows that are compared share one `top`; a small value is still visible. A single bar
    is drawn without an axis.
    """
    if isinstance(values, TooSlow):
        return took_too_long()
    top = max(values, default=0) if top is None else top
    heights = [max(round(value / (top or 1) * 19, 1), 1) for value in values]
    step = 84 / max(len(values), 1)
    size = f'width="{step * 0.75:.1f}" height'
    # By hand, all of it: a list has a thousand bars, and a template takes longer.
    bars = [
        f'<rect x="{at * step:.1f}" y="{20 - height:.1f}" {size}="{height:.1f}"/>'
        for at, (value, height) in enumerate(zip(values, heights, strict=True))
        if value
    ]
    has_axis = wide or len(bars) != 1
    return format_html(
        '<svg class="spark{}" viewBox="0 0 84 20"{} role="img" aria-label="{}">{}{}'
        "</svg>",
        " wide" if wide else "",
        SafeString(' preserveAspectRatio="none"' if wide else ""),
        summary,
        SafeString('<line x1="0" x2="84" y1="19.5" y2="19.5"/>' if has_axis else ""),
        SafeString("".join(bars)),
    )


@register.simple_tag
def share(part: int, whole: int) -> SafeString:
    """Draw a part of a whole as a bar of an SVG picture."""
    return format_html(
        '<svg class="share" viewBox="0 0 100 6" preserveAspectRatio="none"'
        ' aria-hidden="true"><rect width="100" height="6" rx="1"/>'
        '<rect class="part" width="{}" height="6" rx="1"/></svg>',
        round(100 * part / whole, 1) if whole else 0,
    )
