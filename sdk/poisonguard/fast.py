"""The healthy path: an ordinary message that its handler handles.

It is one function, without I/O, lock or object of its own, because every message pays
for it. Whatever is not ordinary is left to `poisonguard.handling`: a message that is
on the skip list, has failed before, was redriven or has expired, and any at all while
the gate is closed. The two functions, for threads and for tasks, differ by one `await`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from time import perf_counter
from typing import Any, Protocol, TypeVar

from poisonguard.handling import Parts
from poisonguard.outcome import Outcome
from poisonguard.policy import RetryPolicy
from poisonguard.readers import Reader
from poisonguard.skips import SkipList
from poisonguard.tally import SAMPLED, Slot
from poisonguard.turns import Numbering

Handler = Callable[[Any], object]
AsyncHandler = Callable[[Any], Awaitable[object]]
Handle = Callable[[Any, Handler], Outcome]
HandleAsync = Callable[[Any, AsyncHandler], Coroutine[Any, Any, Outcome]]

_AnswerT_co = TypeVar("_AnswerT_co", covariant=True)
_NOT_SAMPLED = SAMPLED - 1
_HANDLED = Outcome.HANDLED  # to look it up takes long, for an enum


class Slow(Protocol[_AnswerT_co]):
    """Handles what is not ordinary, or goes on after what a handler has raised."""

    def handle(self, message: Any, handler: Any) -> _AnswerT_co: ...

    def after(
        self, message: Any, handler: Any, slot: Slot, error: BaseException
    ) -> _AnswerT_co: ...


def healthy_path(  # noqa: C901, PLR0915 - see above
    parts: Parts, slow: Slow[Outcome]
) -> Handle:
    """Make `handle` for a handler that is done when it returns."""
    gate, journal, troubled = parts.gate, parts.journal, parts.attempts.suspects
    take, give_back = parts.turns.free.pop, parts.turns.free.append
    sample, handled_last = parts.tally.seconds.append, parts.tally.recent.append

    def handle(message: Any, handler: Handler) -> Outcome:
        number, numbering, slot = 0, gate.number, None
        try:
            number = numbering(message)
            if number and not (troubled and number in troubled):
                slot = take()
        except Exception:  # noqa: BLE001 - unreadable, or as many run as may
            slot = None
        if slot is None:
            return slow.handle(message, handler)
        handled, place = slot.handled, slot.place
        try:
            # From here to the 0, the end of this process is this message's doing.
            journal.words[place] = number
        except (TypeError, ValueError):  # no number from 1 to 2**64-1
            give_back(slot)
            return slow.handle(message, handler)
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
        return slow.after(message, handler, slot, raised)

    return handle


def healthy_path_async(  # noqa: C901, PLR0915 - see above
    parts: Parts, slow: Slow[Awaitable[Outcome]]
) -> HandleAsync:
    """Make `handle` for a handler that is awaited."""
    gate, journal, troubled = parts.gate, parts.journal, parts.attempts.suspects
    take, give_back = parts.turns.free.pop, parts.turns.free.append
    sample, handled_last = parts.tally.seconds.append, parts.tally.recent.append

    async def handle(message: Any, handler: AsyncHandler) -> Outcome:
        number, numbering, slot = 0, gate.number, None
        try:
            number = numbering(message)
            if number and not (troubled and number in troubled):
                slot = take()
        except Exception:  # noqa: BLE001 - unreadable, or as many run as may
            slot = None
        if slot is None:
            return await slow.handle(message, handler)
        handled, place = slot.handled, slot.place
        try:
            # From here to the 0, the end of this process is this message's doing.
            journal.words[place] = number
        except (TypeError, ValueError):  # no number from 1 to 2**64-1
            give_back(slot)
            return await slow.handle(message, handler)
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
        return await slow.after(message, handler, slot, raised)

    return handle


def numbering(
    *,
    reader: Reader,
    skips: SkipList,
    policy: RetryPolicy,
    clock: Callable[[], datetime],
) -> Numbering:
    """Make what numbers an ordinary message, and gives 0 to any other, for now.

    It holds until there is another kind of skips to look for.
    """
    number, message_id = reader.numbering(skips.skipped), reader.message_id
    has_expired = _expiry(reader, policy, clock)
    if skips.is_plain and has_expired is None:
        return number

    def number_with_care(message: Any) -> int:
        if (
            not skips.is_exact
            or (skips.message_ids and message_id(message) in skips.message_ids)
            or (has_expired is not None and has_expired(message))
        ):
            return 0
        return number(message)

    return number_with_care


def _expiry(
    reader: Reader, policy: RetryPolicy, clock: Callable[[], datetime]
) -> Callable[[Any], bool] | None:
    """Return what tells an expired message, None where no message can be one."""
    tells = reader.tells_age and type(reader).enqueued_at is not Reader.enqueued_at
    if reader.replays or not tells or policy.expire_after is None:
        return None

    def has_expired(message: Any) -> bool:
        enqueued_at = reader.enqueued_at(message)
        return enqueued_at is not None and policy.is_expired(enqueued_at, at=clock())

    return has_expired
