"""The healthy path: handles an ordinary message whose handler succeeds.

Every message pays for it, so it is one function without I/O, locks or objects of its
own. `slow_path` handles all other messages: those on the skip list, those that
failed before, were redriven or have expired, and every message while the gate is
closed. The two functions, for threads and for tasks, differ by one `await`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from time import monotonic, perf_counter
from typing import Any, Protocol, TypeVar

from poisonguard.contract import MatcherKind
from poisonguard.handling.concurrency_slots_and_suspect_isolation import Numbering
from poisonguard.handling.handled_counts_and_durations import SAMPLED, Slot
from poisonguard.handling.slow_path import GuardComponents
from poisonguard.outcome import Outcome
from poisonguard.policy import RetryPolicy
from poisonguard.readers import Headers, Reader, header_pairs, to_bytes
from poisonguard.skipping.content_match_rules import HeaderRule, PointerRule, read
from poisonguard.skipping.skip_list import RuleSkip, SkipList

Handler = Callable[[Any], object]
AsyncHandler = Callable[[Any], Awaitable[object]]
Handle = Callable[[Any, Handler], Outcome]
HandleAsync = Callable[[Any, AsyncHandler], Coroutine[Any, Any, Outcome]]

_AnswerT_co = TypeVar("_AnswerT_co", covariant=True)
_NOT_SAMPLED = SAMPLED - 1
_HANDLED = Outcome.HANDLED  # a local copy: enum attribute lookups are slow
_UNREAD = object()
_MESSAGE_ID, _BODY_DIGEST = MatcherKind.MESSAGE_ID, MatcherKind.BODY_DIGEST


class SlowPath(Protocol[_AnswerT_co]):
    """Handle messages that are not ordinary, and those whose handler raised."""

    def handle(self, message: Any, handler: Any) -> _AnswerT_co:
        """Decide a message that is not ordinary; its handler has not run yet."""

    def after(
        self, message: Any, handler: Any, slot: Slot, error: BaseException
    ) -> _AnswerT_co:
        """Decide a message whose handler raised this exception in the slot."""


def healthy_path(  # noqa: C901, PLR0915 - see above
    components: GuardComponents, slow_path: SlowPath[Outcome]
) -> Handle:
    """Return a guard's fast `handle` of messages, for plain handlers."""
    gate, journal, troubled = (
        components.gate,
        components.journal,
        components.attempts.suspects,
    )
    take, give_back = components.slots.free.pop, components.slots.free.append
    sample, handled_last = (
        components.counts.seconds.append,
        components.counts.recent.append,
    )

    def handle(message: Any, handler: Handler) -> Outcome:
        number, numbering, slot = 0, gate.numbering, None
        try:
            number = numbering(message)
            if number and not (troubled and number in troubled):
                slot = take()
        except Exception:  # noqa: BLE001 - unreadable, or as many run as may
            slot = None
        if slot is None:
            return slow_path.handle(message, handler)
        handled, place = slot.handled, slot.place
        try:
            # From here to the 0, the end of this process is this message's doing.
            journal.words[place] = number
        except (TypeError, ValueError):  # no number from 1 to 2**64-1
            give_back(slot)
            return slow_path.handle(message, handler)
        try:
            if handled & _NOT_SAMPLED:
                handler(message)
            else:
                started = perf_counter()
                handler(message)
                sample(perf_counter() - started)
        except BaseException as error:  # noqa: BLE001 - what is no failure is raised
            raised = error
        else:
            journal.words[place] = 0
            slot.handled = handled + 1
            handled_last(number)
            give_back(slot)
            return _HANDLED
        # Not in the clause above: what a retry raises is no consequence of this.
        return slow_path.after(message, handler, slot, raised)

    return handle


def healthy_path_async(  # noqa: C901, PLR0915 - see above
    components: GuardComponents, slow_path: SlowPath[Awaitable[Outcome]]
) -> HandleAsync:
    """Return a guard's fast `handle` of messages, for async handlers."""
    gate, journal, troubled = (
        components.gate,
        components.journal,
        components.attempts.suspects,
    )
    take, give_back = components.slots.free.pop, components.slots.free.append
    sample, handled_last = (
        components.counts.seconds.append,
        components.counts.recent.append,
    )

    async def handle(message: Any, handler: AsyncHandler) -> Outcome:
        number, numbering, slot = 0, gate.numbering, None
        try:
            number = numbering(message)
            if number and not (troubled and number in troubled):
                slot = take()
        except Exception:  # noqa: BLE001 - unreadable, or as many run as may
            slot = None
        if slot is None:
            return await slow_path.handle(message, handler)
        handled, place = slot.handled, slot.place
        try:
            # From here to the 0, the end of this process is this message's doing.
            journal.words[place] = number
        except (TypeError, ValueError):  # no number from 1 to 2**64-1
            give_back(slot)
            return await slow_path.handle(message, handler)
        try:
            if handled & _NOT_SAMPLED:
                await handler(message)
            else:
                started = perf_counter()
                await handler(message)
                sample(perf_counter() - started)
        except BaseException as error:  # noqa: BLE001 - what is no failure is raised
            raised = error
        else:
            journal.words[place] = 0
            slot.handled = handled + 1
            handled_last(number)
            give_back(slot)
            return _HANDLED
        # Not in the clause above: what a retry raises is no consequence of this.
        return await slow_path.after(message, handler, slot, raised)

    return handle


def numbering(
    *,
    reader: Reader,
    skips: SkipList,
    policy: RetryPolicy,
    clock: Callable[[], datetime],
) -> Numbering:
    """Return a function that numbers ordinary messages; 0 sends others the slow path.

    It is valid until the skip list has skips of another kind.
    """
    number = _without_expired(reader, skips, policy, clock)
    return number if skips.is_plain else _without_matches(reader, number, skips)


def _without_matches(  # noqa: C901 - each message would pay for another call
    reader: Reader, number: Numbering, skips: SkipList
) -> Numbering:
    """Return a numbering function, with 0 also for skips by id, digest or rule."""
    ids, digests = skips.refs[_MESSAGE_ID], skips.refs[_BODY_DIGEST]
    message_id, body_of, headers_of = reader.message_id, reader.body, reader.headers
    matcher = RuleMatcher(())

    def number_without_matches(message: Any) -> int:
        nonlocal matcher
        if ids and message_id(message) in ids:
            return 0
        if skips.is_exact:
            return number(message)
        if matcher.rules is not skips.rules:
            matcher = RuleMatcher(skips.rules)
        body = body_of(message) if digests or matcher.reads_body else b""
        if type(body) is not bytes:
            body = to_bytes(body)
        if digests and sha256(body).digest() in digests:
            return 0
        if matcher.reads_headers and matcher.matches_any(
            header_pairs(headers_of(message))
        ):
            return 0
        if matcher.reads_body and matcher.matches(body):
            return 0
        return number(message)

    return number_without_matches


class RuleMatcher:
    """Match rules against a message as the slow path does."""

    def __init__(self, rules: Sequence[RuleSkip]) -> None:
        self.rules = rules
        parsed = [each.rule for each in rules]
        self._pairs = {rule.pair for rule in parsed if isinstance(rule, HeaderRule)}
        self._pointers = [rule for rule in parsed if isinstance(rule, PointerRule)]
        self.reads_body = bool(self._pointers)
        self.reads_headers = bool(self._pairs)

    def matches_any(self, headers: Headers) -> bool:
        """Tell whether a message's header matches one of the header rules."""
        pairs = self._pairs
        return any((name.lower(), value) in pairs for name, value in headers)

    def matches(self, body: bytes) -> bool:
        """Tell whether a message's body matches one of the pointer rules."""
        document: object = _UNREAD
        for rule in self._pointers:
            if rule.may_match(body):
                document = read(body) if document is _UNREAD else document
                if rule.matches_document(document):
                    return True
        return False


def _without_expired(
    reader: Reader,
    skips: SkipList,
    policy: RetryPolicy,
    clock: Callable[[], datetime],
) -> Numbering:
    """Return the reader's numbering function, with 0 also for messages about to expire.

    Messages enqueued before `edge` may have. `edge` is computed once per second,
    because building a datetime for each message would be slow.
    """
    tells = reader.tells_age and type(reader).enqueued_at is not Reader.enqueued_at
    if reader.replays or not tells or policy.expire_after is None:
        return reader.numbering(skips.skipped)
    lifetime, until = policy.expire_after, 0.0
    edge, least = clock(), reader.number_at(clock())

    def update_edge() -> None:
        nonlocal until, edge, least
        until = monotonic() + 1.0
        edge = _before(clock(), lifetime - 1.0)
        least = reader.number_at(edge)

    def is_expired(began: datetime) -> bool:
        if monotonic() >= until:
            update_edge()
        return began <= edge

    if least is None:
        return reader.numbering_by_age(skips.skipped, is_expired)
    number = reader.numbering(skips.skipped)

    def number_by_number(message: Any) -> int:
        if monotonic() >= until:
            update_edge()
        result = number(message)
        return result if result >= least else 0

    return number_by_number


def _before(moment: datetime, seconds: float) -> datetime:
    """Return a moment so many seconds earlier, or the earliest of all."""
    try:
        return moment - timedelta(seconds=seconds)
    except OverflowError:  # longer than there are years
        return datetime.min.replace(tzinfo=UTC)
