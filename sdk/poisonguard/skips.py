"""The mirror of one skip list: what this consumer passes over, by now.

Reads take no lock: `bookmarks`, `message_ids` and `digests` are plain dicts that are
never replaced, only changed in place, so a reader may keep them, and so is `skipped`,
the set of the bookmarks; `rules` is a tuple that is swapped whole. A new snapshot adds
what is new before it takes out what is gone: at no moment is anything missing that both
have.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count

from poisonguard.contract import MatcherKind, Skip
from poisonguard.rules import Rule, from_canonical

log = logging.getLogger(__name__)

# Skips of our own that the server's list has not named; the oldest leave beyond it.
OWN_LIMIT = 10_000
OWN_FOR = 600.0  # seconds for which the server's list may leave one of them out
# Longer than that without a word, and a list was cut off (a ping comes every 15 s).
CUT_OFF = 60.0
# Whoever has a message in hand when its skip comes has handled it by then.
DOUBT_FOR = 60.0

_Key = tuple[MatcherKind, str]


@dataclass(frozen=True, slots=True)
class RuleSkip:
    """A skip by rule, with its rule read."""

    skip: Skip
    rule: Rule


@dataclass(frozen=True, kw_only=True, slots=True)
class Doubt:
    """A skip of a message that we may have handled, and what we know that by.

    It came at `since`, on the monotonic clock.
    """

    skip: Skip
    message_id: str | None
    seq: int | None
    since: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fence:
    """Somebody else opened this position under a newer epoch."""

    client_name: str
    sub_id: str
    topic: str
    epoch: int


@dataclass(frozen=True, slots=True)
class _Own:
    """A skip of our own, and since when it holds (monotonic seconds)."""

    skip: Skip
    since: float

    def was_known_at(self, moment: float) -> bool:
        """Tell whether the server had its report, and had answered it, by then."""
        return self.skip.poison is not None and self.since < moment


class SkipList:
    """The skips of one topic that apply to one consumer group and handler version.

    `is_exact` is True while neither a digest nor a rule skip is in force, `is_plain`
    while all that are in force go by the bookmark; `on_kinds` is called when that has
    changed. `age` is the time since the list was last known to be current; it grows
    while cut off, and the last state stays in force. `changes` counts what was added,
    removed and skipped.

    A skip of our own holds until the server's list has one like it, and from then on it
    is the server's: an un-poison ends it. Where the list never has one, it ends with
    the first snapshot that was asked for after the server had our report; at the latest
    when the list has been current for `OWN_FOR` seconds without it. So it outlives its
    un-poison by ten minutes of a current list at the most, and no outage ends it.
    """

    def __init__(
        self,
        *,
        topic: str,
        consumer_group: str,
        handler_version: str | None,
        tell_applied: Callable[[int, int], None],
    ) -> None:
        self.topic = topic
        self.consumer_group = consumer_group
        self.handler_version = handler_version
        self.bookmarks: dict[str, Skip] = {}
        self.skipped: set[str] = set()  # many are looked up faster than in a dict
        self.message_ids: dict[str, Skip] = {}
        self.digests: dict[bytes, Skip] = {}
        self.rules: tuple[RuleSkip, ...] = ()
        self.is_exact = True
        self.is_plain = True
        self.on_kinds: list[Callable[[], None]] = []
        self.changes: Counter[str] = Counter()
        # Another consumer failed on these; they are not passed over, not yet.
        self.suspects: dict[int, Doubt] = {}
        self._lately: dict[int, Doubt] = {}
        self.on_fence: list[Callable[[Fence], None]] = []
        self._tell_applied = tell_applied
        self._current_at: float | None = None
        self._current_since = 0.0
        self._by_id: dict[int, Skip] = {}
        self._same: dict[_Key, list[Skip]] = {}  # all that match by it; the last shows
        self._own: dict[_Key, _Own] = {}  # the oldest first
        self._own_applied: Counter[_Key] = Counter()
        self._rules: dict[str, RuleSkip] = {}
        self._expiring: list[tuple[datetime, int, Skip]] = []
        self._tie = count()
        self.remake()

    def remake(self) -> None:
        """Get a lock of our own; the one of a parent may be held for ever."""
        self._writing = threading.RLock()

    @property
    def age(self) -> float | None:
        return None if self._current_at is None else time.monotonic() - self._current_at

    def __len__(self) -> int:
        return len(self._same)

    # What the guard does

    def add_own(self, skip: Skip) -> None:
        """Pass over it from now on, also offline, until the server's list decides."""
        key = skip.kind, skip.value
        with self._writing:
            if key in self._same:
                return
            if len(self._own) >= OWN_LIMIT:
                self._drop_own(next(iter(self._own)), "too many")
            self._own[key] = _Own(skip, time.monotonic())
            self._put_in(skip)

    def applied(self, skip: Skip) -> None:
        """Note that a message was passed over because of this skip."""
        log.info("skipped a message: %s", _told(skip))
        with self._writing:
            self.changes["skipped"] += 1
            key = skip.kind, skip.value
            if skip.id is None and key in self._own:
                # Its number is not known yet; told when the server's takes its place.
                self._own_applied[key] += 1
                return
            # The server's may have taken its place, or nobody's, since it was found.
            listed = self._same.get(key, [skip])[-1] if skip.id is None else skip
        if listed.id is not None:
            self._tell_applied(listed.id, 1)

    def doubts(self) -> list[Doubt]:
        """Give the skips that end if we have handled their messages."""
        with self._writing:
            before = time.monotonic() - DOUBT_FOR
            lately = self._lately.items()
            self._lately = {key: each for key, each in lately if each.since > before}
            return [*self.suspects.values(), *self._lately.values()]

    def settle_doubt(self, skip_id: int) -> None:
        """Ask no more: the server was told that its message was handled."""
        with self._writing:
            self.suspects.pop(skip_id, None)
            self._lately.pop(skip_id, None)

    # What the stream does

    def suspect(self, doubt: Doubt, *, now: datetime) -> None:
        """Go on handling a message that another consumer failed on."""
        with self._writing:
            if self._applies(doubt.skip, now):
                self.suspects[_id(doubt.skip)] = doubt

    def doubt(self, doubt: Doubt) -> None:
        """Look for some time whether we handled what is passed over from now on."""
        with self._writing:
            if _id(doubt.skip) in self._by_id:
                self._lately.setdefault(_id(doubt.skip), doubt)

    def put(self, skip: Skip, *, now: datetime) -> None:
        """Take over one skip of the server's list, in place of our own like it."""
        with self._writing:
            suspected = self.suspects.pop(_id(skip), None)
            if suspected is not None:
                self._lately[_id(skip)] = replace(suspected, since=time.monotonic())
            known = self._by_id.get(_id(skip))
            if known == skip:
                return
            if self._applies(skip, now):
                self._by_id[_id(skip)] = skip
                self._put_in(skip)
                self._replace_own(skip)
            if known is not None:
                self._take_out(known, "changed")
                if not self._applies(skip, now):
                    del self._by_id[_id(skip)]

    def remove(self, skip_id: int, *, because: str) -> None:
        with self._writing:
            suspected = self.suspects.get(skip_id)
            self.settle_doubt(skip_id)
            skip = self._by_id.pop(skip_id, None)
            if skip is not None:
                self._take_out(skip, because)
            elif suspected is not None:
                self._drop_own_like(suspected.skip, because)

    def load(
        self,
        skips: Iterable[Skip],
        *,
        suspects: Iterable[Doubt] = (),
        now: datetime,
        asked_at: float | None = None,
    ) -> None:
        """Become what the server's list is now, besides our own that it may not know.

        `asked_at`, on the monotonic clock, is when the list was asked for: it decides
        on those of our own that the server had taken note of before.
        """
        with self._writing:
            self.suspects.clear()
            for doubt in suspects:
                self.suspect(doubt, now=now)
            listed = {_id(skip): skip for skip in skips}
            for skip in listed.values():
                self.put(skip, now=now)
            for skip_id in self._by_id.keys() - listed.keys():
                self.remove(skip_id, because="removed")
            suspected = {(d.skip.kind, d.skip.value) for d in self.suspects.values()}
            for key, own in list(self._own.items()):
                if key in suspected:
                    continue
                if asked_at is not None and own.was_known_at(asked_at):
                    self._drop_own(key, "the server's list is without it")
        self.touch()

    def touch(self) -> None:
        """Note that the list is current at this moment."""
        with self._writing:
            now = time.monotonic()
            if self._current_at is None or now - self._current_at > CUT_OFF:
                # What was reported meanwhile may be on its way to the server only now.
                self._current_since = now
            self._current_at = now
            self._drop_overdue(now)

    def expire(self, now: datetime) -> None:
        """Take out what is over."""
        with self._writing:
            while self._expiring and self._expiring[0][0] <= now:
                _, _, skip = heapq.heappop(self._expiring)
                if skip in self._same.get((skip.kind, skip.value), ()):
                    if skip.id is None:
                        self._drop_own((skip.kind, skip.value), "expired")
                    else:
                        del self._by_id[skip.id]
                        self._take_out(skip, "expired")

    @property
    def next_expiry(self) -> datetime | None:
        with self._writing:
            return self._expiring[0][0] if self._expiring else None

    def fence(self, fence: Fence) -> None:
        for tell in list(self.on_fence):
            try:
                tell(fence)
            except Exception:
                log.exception("who was to be told of a fence failed: %s", fence)

    # How it is kept

    def _applies(self, skip: Skip, now: datetime) -> bool:
        return (
            skip.consumer_group in (None, self.consumer_group)
            and skip.handler_version in (None, self.handler_version)
            and (skip.expires_at is None or skip.expires_at > now)
        )

    def _put_in(self, skip: Skip) -> None:
        self._same.setdefault((skip.kind, skip.value), []).append(skip)
        self._show(skip)
        if skip.expires_at is not None:
            heapq.heappush(self._expiring, (skip.expires_at, next(self._tie), skip))
            self._forget_past_expiries()
        self.changes["added"] += 1
        # A first snapshot may hold 100,000 of them: the feed tells of it in one line.
        if self._current_at is not None:
            log.info("a skip was added: %s", _told(skip))

    def _take_out(self, skip: Skip, because: str) -> None:
        same = self._same[skip.kind, skip.value]
        same.remove(skip)
        if same:
            self._show(same[-1])
        else:
            del self._same[skip.kind, skip.value]
            self._hide(skip)
        self.changes["removed"] += 1
        log.info("a skip was removed (%s): %s", because, _told(skip))

    def _replace_own(self, skip: Skip) -> None:
        key = skip.kind, skip.value
        if key not in self._own:
            return
        times = self._own_applied[key]
        self._drop_own(key, "the server's list has it now")
        if times:
            self._tell_applied(_id(skip), times)

    def _drop_own_like(self, skip: Skip, because: str) -> None:
        if (skip.kind, skip.value) in self._own:
            self._drop_own((skip.kind, skip.value), because)

    def _drop_own(self, key: _Key, because: str) -> None:
        self._own_applied.pop(key, None)
        self._take_out(self._own.pop(key).skip, because)

    def _drop_overdue(self, now: float) -> None:
        """Let the server's list decide on our own that it has left out for long."""
        while self._own:
            key, own = next(iter(self._own.items()))
            if max(own.since, self._current_since) + OWN_FOR > now:
                return
            self._drop_own(key, "the server's list is without it")

    def _show(self, skip: Skip) -> None:
        match skip.kind:
            case MatcherKind.BOOKMARK:
                self.bookmarks[skip.value] = skip
                self.skipped.add(skip.value)
            case MatcherKind.MESSAGE_ID:
                self.message_ids[skip.value] = skip
            case MatcherKind.BODY_DIGEST:
                self.digests[bytes.fromhex(skip.value)] = skip
            case MatcherKind.RULE:
                self._rules[skip.value] = RuleSkip(skip, from_canonical(skip.value))
                self.rules = tuple(self._rules.values())
        self._judge_kinds()

    def _hide(self, skip: Skip) -> None:
        match skip.kind:
            case MatcherKind.BOOKMARK:
                self.skipped.discard(skip.value)
                del self.bookmarks[skip.value]
            case MatcherKind.MESSAGE_ID:
                del self.message_ids[skip.value]
            case MatcherKind.BODY_DIGEST:
                del self.digests[bytes.fromhex(skip.value)]
            case MatcherKind.RULE:
                del self._rules[skip.value]
                self.rules = tuple(self._rules.values())
        self._judge_kinds()

    def _judge_kinds(self) -> None:
        self.is_exact = not self.digests and not self.rules
        is_plain = self.is_exact and not self.message_ids
        if self.is_plain != is_plain:
            self.is_plain = is_plain
            for call in self.on_kinds:
                call()

    def _forget_past_expiries(self) -> None:
        # Skips that were removed before their time stay in the heap until then.
        if len(self._expiring) > 2 * len(self._same) + 1_000:
            self._expiring = [
                (skip.expires_at, next(self._tie), skip)
                for same in self._same.values()
                for skip in same
                if skip.expires_at is not None
            ]
            heapq.heapify(self._expiring)


def _id(skip: Skip) -> int:
    if skip.id is None:
        raise ValueError("A skip of the server's list has an id.")
    return skip.id


def _told(skip: Skip) -> str:
    number = "of our own" if skip.id is None else str(skip.id)
    return (
        f"{number}, {skip.topic}, {skip.kind} {skip.value[:200]!r}, "
        f"by {skip.by or 'this guard'}: {skip.reason[:200]!r}"
    )
