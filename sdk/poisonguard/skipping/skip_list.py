"""The local copy of one skip list: what this consumer skips.

Lookups take no lock: `skipped` and `refs` are a plain set and plain dicts, changed in
place and never replaced, so readers may keep them; `rules` is a tuple that is replaced
whole. A new snapshot adds new skips before it removes old ones, so that skips in both
are never missing. `bookmarks`, `message_ids` and `digests` create `Skip` values on
access.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, count
from typing import Any, TypeVar, cast

from poisonguard.contract import MatcherKind, Skip
from poisonguard.skipping.rules import Rule, from_canonical
from poisonguard.skipping.skip_lines import EPOCH
from poisonguard.skipping.skip_table import Key, SharedFields, SkipTable, key_of

log = logging.getLogger(__name__)

# Own skips that the server's list does not have yet; beyond it the oldest are dropped.
OWN_LIMIT = 10_000
OWN_FOR = 600.0  # seconds for which the server's list may lack an own skip
# Seconds without an event after which a list was cut off (pings come every 15 s).
CUT_OFF = 60.0
# Messages in flight when their skip arrives are handled after so many seconds.
DOUBT_FOR = 60.0
# So many skips from the stream are kept loose before they are packed.
LOOSE = 1_000
LISTED = "the server's list has it now"  # why an own skip is removed

_Key = tuple[MatcherKind, Key]
# A skip, or its row in the table of the last snapshot.
_Ref = Skip | int
_KeyT = TypeVar("_KeyT", str, bytes)


@dataclass(frozen=True, slots=True)
class RuleSkip:
    """A skip by rule, with its parsed rule."""

    skip: Skip
    rule: Rule


@dataclass(frozen=True, kw_only=True, slots=True)
class Doubt:
    """A skip of a message that we may have handled, with what identifies the message.

    It arrived at `since`, on the monotonic clock.
    """

    skip: Skip
    message_id: str | None
    seq: int | None
    since: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fence:
    """Another client opened this position under a newer epoch."""

    client_name: str
    sub_id: str
    topic: str
    epoch: int


@dataclass(frozen=True, slots=True)
class _OwnSkip:
    """A skip that this guard made, and since when (monotonic seconds)."""

    skip: Skip
    since: float

    def was_known_at(self, moment: float) -> bool:
        """Tell whether the server had answered its report by that moment."""
        return self.skip.poison is not None and self.since < moment


class SkipsByKey(Mapping[_KeyT, Skip]):
    """The skips of one kind by their key; of several with one key, the last."""

    def __init__(
        self, refs: Mapping[Any, object], find: Callable[[Any], Skip | None]
    ) -> None:
        self._refs = refs
        self._find = find

    def __getitem__(self, key: _KeyT) -> Skip:
        skip = self._find(key)
        if skip is None:
            raise KeyError(key)
        return skip

    def __contains__(self, key: object) -> bool:
        return key in self._refs

    def __iter__(self) -> Iterator[_KeyT]:
        return iter(list(self._refs))

    def __len__(self) -> int:
        return len(self._refs)


class SkipList:
    """The skips of one topic that apply to one consumer group and handler version.

    `is_exact` is True while no digest or rule skip is in force, `is_plain` while all
    skips in force match by bookmark; `on_kinds` is called when `is_plain` changes.
    `age` is the time since the list was last current; it grows while we are cut off,
    and the last state stays in force. `changes` counts skips added, removed and
    applied.

    An own skip, made by this guard, holds until the server's list has an equal one,
    which replaces it and ends when the server removes it. Where the list never has one,
    the own skip ends with the first snapshot requested after the server had our report,
    or when the list was current for `OWN_FOR` seconds without it. An outage never ends
    it.
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
        self.refs: dict[MatcherKind, dict[Key, _Ref | list[_Ref]]] = {
            kind: {} for kind in MatcherKind
        }
        self.skipped: set[str] = set()  # faster to look up than a dict
        self.bookmarks: SkipsByKey[str] = self._skips_by_key(MatcherKind.BOOKMARK)
        self.message_ids: SkipsByKey[str] = self._skips_by_key(MatcherKind.MESSAGE_ID)
        self.digests: SkipsByKey[bytes] = self._skips_by_key(MatcherKind.BODY_DIGEST)
        self.rules: tuple[RuleSkip, ...] = ()
        self.is_exact = True
        self.is_plain = True
        self.on_kinds: list[Callable[[], None]] = []
        self.changes: Counter[str] = Counter()
        # Another consumer failed on these; they are not skipped yet.
        self.suspects: dict[int, Doubt] = {}
        self._recent_doubts: dict[int, Doubt] = {}
        self.on_fence: list[Callable[[Fence], None]] = []
        self._tell_applied = tell_applied
        self._current_at: float | None = None
        self._current_since = 0.0
        self._table = self.table(now=EPOCH)
        self._table.close()
        self._loose: dict[
            int, Skip
        ] = {}  # skips from the stream since the last snapshot
        self._own: dict[_Key, _OwnSkip] = {}  # the oldest first
        self._own_applied: Counter[_Key] = Counter()
        self._rules: dict[Key, RuleSkip] = {}
        self._expiring: list[tuple[datetime, int, Skip]] = []
        self._tie = count()
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Create a new lock: the parent's may be held for ever."""
        self._writing = threading.RLock()

    @property
    def age(self) -> float | None:
        return None if self._current_at is None else time.monotonic() - self._current_at

    def __len__(self) -> int:
        return sum(map(len, self.refs.values()))

    def _skips_by_key(self, kind: MatcherKind) -> SkipsByKey[_KeyT]:
        return SkipsByKey(self.refs[kind], lambda key: self._last((kind, key)))

    # What the guard does

    def add_own(self, skip: Skip) -> None:
        """Skip it from now on, also offline, until the server's list decides."""
        key = _key(skip)
        with self._writing:
            if self._last(key) is not None:
                return
            if len(self._own) >= OWN_LIMIT:
                self._drop_own(next(iter(self._own)), "too many")
            self._own[key] = _OwnSkip(skip, time.monotonic())
            self._put_in(skip)

    def applied(self, skip: Skip) -> None:
        """Count that a message was skipped because of this skip."""
        log.info("skipped a message: %s", _describe(skip))
        with self._writing:
            self.changes["skipped"] += 1
            key = _key(skip)
            if skip.id is None and key in self._own:
                # Its id is not known yet: reported when the server's skip replaces it.
                self._own_applied[key] += 1
                return
            # The server's skip may have replaced it since, or it may have ended.
            listed = (self._last(key) or skip) if skip.id is None else skip
        if listed.id is not None:
            self._tell_applied(listed.id, 1)

    def doubts(self) -> list[Doubt]:
        """Return the skips that end if we have handled their messages."""
        with self._writing:
            before = time.monotonic() - DOUBT_FOR
            lately = self._recent_doubts.items()
            self._recent_doubts = {
                key: each for key, each in lately if each.since > before
            }
            return [*self.suspects.values(), *self._recent_doubts.values()]

    def settle_doubt(self, skip_id: int) -> None:
        """Drop a doubt: the server knows that its message was handled."""
        with self._writing:
            self.suspects.pop(skip_id, None)
            self._recent_doubts.pop(skip_id, None)

    # What the stream does

    def suspect(self, doubt: Doubt, *, now: datetime) -> None:
        """Note a message that another consumer failed on; do not skip it yet."""
        with self._writing:
            if self._applies(doubt.skip, now):
                self.suspects[_id(doubt.skip)] = doubt

    def doubt(self, doubt: Doubt) -> None:
        """Check for some time whether we handled the message of a new skip."""
        with self._writing:
            if self._ref(_id(doubt.skip)) is not None:
                self._recent_doubts.setdefault(_id(doubt.skip), doubt)

    def put(self, skip: Skip, *, now: datetime) -> None:
        """Add or change a skip of the server's list, replacing an equal own skip."""
        with self._writing:
            suspected = self.suspects.pop(_id(skip), None)
            if suspected is not None:
                self._recent_doubts[_id(skip)] = replace(
                    suspected, since=time.monotonic()
                )
            existing = self._ref(_id(skip))
            if existing is not None and self._skip(existing) == skip:
                return
            if self._applies(skip, now):
                self._loose[_id(skip)] = skip
                self._put_in(skip)
                self._replace_own(skip)
            if existing is not None:
                self._take_out(existing, "changed")
            self._pack()

    def remove(self, skip_id: int, *, because: str) -> None:
        with self._writing:
            suspected = self.suspects.get(skip_id)
            self.settle_doubt(skip_id)
            ref = self._ref(skip_id)
            if ref is not None:
                self._take_out(ref, because)
                self._pack()
            elif suspected is not None:
                self._drop_own_like(suspected.skip, because)

    def table(self, *, now: datetime) -> SkipTable:
        """Create a table for `load` that accepts the skips which apply to us."""
        return SkipTable(topic=self.topic, applies=self._concerns, now=now)

    def load(
        self,
        skips: Iterable[Skip] | SkipTable,
        *,
        suspects: Iterable[Doubt] = (),
        now: datetime,
        asked_at: float | None = None,
    ) -> None:
        """Replace all skips by the server's list, except own skips it may lack yet.

        `asked_at`, on the monotonic clock, is when the list was requested: own skips
        that the server knew before are dropped if the list lacks them.
        """
        table = skips if isinstance(skips, SkipTable) else self._packed(skips, now)
        table.close()
        with self._writing:
            self.suspects.clear()
            for doubt in suspects:
                if table.row(_id(doubt.skip)) is None:
                    self.suspect(doubt, now=now)
            before, loose = self._table, self._loose
            self._replace_table(table)
            self._log_changes(before, loose)
            suspected = {_key(d.skip) for d in self.suspects.values()}
            for key, own in list(self._own.items()):
                if key in suspected:
                    continue
                if asked_at is not None and own.was_known_at(asked_at):
                    self._drop_own(key, "the server's list is without it")
        self.touch()

    def touch(self) -> None:
        """Mark the list as current now."""
        with self._writing:
            now = time.monotonic()
            if self._current_at is None or now - self._current_at > CUT_OFF:
                # Reports made meanwhile may reach the server only now.
                self._current_since = now
            self._current_at = now
            self._drop_overdue(now)

    def expire(self, now: datetime) -> None:
        """Remove expired skips."""
        with self._writing:
            while self._expiring and self._expiring[0][0] <= now:
                _, _, skip = heapq.heappop(self._expiring)
                if self._is_kept(skip):
                    if skip.id is None:
                        self._drop_own(_key(skip), "expired")
                    else:
                        self._take_out(skip, "expired")
            for row in self._table.expired(now):
                self._take_out(row, "expired")
            self._pack()

    @property
    def next_expiry(self) -> datetime | None:
        with self._writing:
            loose = self._expiring[0][0] if self._expiring else None
            packed = self._table.next_expiry
            return min(filter(None, (loose, packed)), default=None)

    def fence(self, fence: Fence) -> None:
        for tell in list(self.on_fence):
            try:
                tell(fence)
            except Exception:
                log.exception("who was to be told of a fence failed: %s", fence)

    # How it is kept

    def _concerns(self, skip: Skip | SharedFields) -> bool:
        is_of_ours = skip.consumer_group in (None, self.consumer_group)
        return is_of_ours and skip.handler_version in (None, self.handler_version)

    def _applies(self, skip: Skip, now: datetime) -> bool:
        is_over = skip.expires_at is not None and skip.expires_at <= now
        return self._concerns(skip) and not is_over

    def _ref(self, skip_id: int) -> _Ref | None:
        """Find a skip of the server's list by its id."""
        skip = self._loose.get(skip_id)
        return self._table.row(skip_id) if skip is None else skip

    def _skip(self, ref: _Ref) -> Skip:
        return self._table.skip(ref) if isinstance(ref, int) else ref

    def _last(self, key: _Key) -> Skip | None:
        """Return the last skip with this key."""
        # Row numbers change with each snapshot.
        with self._writing:
            refs = self.refs[key[0]].get(key[1])
            if refs is None:
                return None
            return self._skip(refs[-1] if isinstance(refs, list) else refs)

    def _is_kept(self, skip: Skip) -> bool:
        if skip.id is not None:
            return self._loose.get(skip.id) is skip
        own = self._own.get(_key(skip))
        return own is not None and own.skip is skip

    def _put_in(self, skip: Skip) -> None:
        kind, key = _key(skip)
        self.refs[kind][key] = _with(self.refs[kind].get(key), skip)
        self._show(kind, key)
        self._let_expire(skip)
        self._note_added(skip)

    def _take_out(self, ref: _Ref, because: str) -> None:
        skip = self._skip(ref)
        kind, key = _key(skip)
        remaining = _without(self.refs[kind][key], ref)
        if remaining is None:
            self._hide(kind, key)
        else:
            self.refs[kind][key] = remaining
            self._show(kind, key)
        if isinstance(ref, int):
            self._table.remove(ref)
        elif skip.id is not None and self._loose.get(skip.id) is skip:
            del self._loose[skip.id]
        self._note_removed(skip, because)

    # A whole snapshot

    def _packed(self, skips: Iterable[Skip], now: datetime) -> SkipTable:
        table = self.table(now=now)
        for skip in skips:
            table.add(skip)
        return table

    def _pack(self) -> None:
        """Pack loose skips into the table once there are many."""
        if len(self._loose) + self._table.dead <= LOOSE + len(self._table) // 4:
            return
        packed = (self._table.skip(row) for row, _ in self._table.ids())
        table = self._packed(chain(packed, self._loose.values()), EPOCH)
        table.close()
        self._replace_table(table)

    def _replace_table(self, table: SkipTable) -> None:
        """Replace the skips in force by a table, and keep own skips."""
        refs_by_kind: dict[MatcherKind, dict[Key, _Ref | list[_Ref]]]
        refs_by_kind = {kind: {} for kind in MatcherKind}
        for row, kind, key in table.rows():
            refs = refs_by_kind[kind]
            if key in refs:
                refs[key] = _with(refs[key], row)
            else:
                refs[key] = row
        own_keys = [key for key in self._own if key[1] in refs_by_kind[key[0]]]
        for (kind, key), own in self._own.items():
            refs_by_kind[kind][key] = _with(refs_by_kind[kind].get(key), own.skip)
        self._table, self._loose = table, {}
        self._expiring.clear()
        for own in self._own.values():
            self._let_expire(own.skip)
        for kind, refs in refs_by_kind.items():
            self._update_refs(kind, refs)
        for own_key in own_keys:
            same = refs_by_kind[own_key[0]][own_key[1]]
            skip = self._skip(same[0] if isinstance(same, list) else same)
            self._drop_own(own_key, LISTED, in_place_of=skip)

    def _update_refs(
        self, kind: MatcherKind, new_refs: dict[Key, _Ref | list[_Ref]]
    ) -> None:
        refs = self.refs[kind]
        if kind is MatcherKind.BOOKMARK:
            marks = cast(Iterable[str], new_refs)
            # Updating with all of them would allocate room for twice as many.
            self.skipped.update(marks if not refs else self._new(marks))
        if refs:
            for key, ref in new_refs.items():
                refs[key] = ref
        else:
            refs.update(new_refs)
        if kind is MatcherKind.RULE:
            for key in new_refs:
                self._show(kind, key)
        if len(refs) > len(new_refs):
            for key in refs.keys() - new_refs.keys():
                self._hide(kind, key)
        self._judge_kinds()

    def _new(self, marks: Iterable[str]) -> Iterator[str]:
        return (mark for mark in marks if mark not in self.skipped)

    def _log_changes(self, before: SkipTable, loose: Mapping[int, Skip]) -> None:
        """Count and log how the new table differs from the old one."""
        table = self._table
        if self._current_at is None and not len(before) and not loose:
            self.changes["added"] += len(table)
            return
        for row, number in table.ids():
            there = before.row(number)
            if number in loose or there is None:
                self._note_put(loose.get(number), table.skip(row))
            elif not table.is_same(row, before, there):
                self._note_put(before.skip(there), table.skip(row))
        removed_rows = [
            row for row, number in before.ids() if table.row(number) is None
        ]
        for was in chain(map(before.skip, removed_rows), loose.values()):
            if table.row(_id(was)) is None:
                self._note_removed(was, "removed")

    def _note_put(self, was: Skip | None, skip: Skip) -> None:
        if was == skip:
            return
        self._note_added(skip)
        if was is not None:
            self._note_removed(was, "changed")

    def _note_added(self, skip: Skip) -> None:
        self.changes["added"] += 1
        # A first snapshot may hold 100,000 of them: the stream logs one line for it.
        if self._current_at is not None:
            log.info("a skip was added: %s", _describe(skip))

    def _note_removed(self, skip: Skip, because: str) -> None:
        self.changes["removed"] += 1
        log.info("a skip was removed (%s): %s", because, _describe(skip))

    # Our own

    def _replace_own(self, skip: Skip) -> None:
        key = _key(skip)
        if key in self._own:
            self._drop_own(key, LISTED, in_place_of=skip)

    def _drop_own_like(self, skip: Skip, because: str) -> None:
        if _key(skip) in self._own:
            self._drop_own(_key(skip), because)

    def _drop_own(
        self, key: _Key, because: str, *, in_place_of: Skip | None = None
    ) -> None:
        own, times = self._own.pop(key).skip, self._own_applied.pop(key, 0)
        self._take_out(own, because)
        if in_place_of is not None and times:
            self._tell_applied(_id(in_place_of), times)

    def _drop_overdue(self, now: float) -> None:
        """Drop own skips that the server's list has lacked for OWN_FOR seconds."""
        while self._own:
            key, own = next(iter(self._own.items()))
            if max(own.since, self._current_since) + OWN_FOR > now:
                return
            self._drop_own(key, "the server's list is without it")

    # How it is shown

    def _show(self, kind: MatcherKind, key: Key) -> None:
        if kind is MatcherKind.BOOKMARK:
            self.skipped.add(cast(str, key))
        elif kind is MatcherKind.RULE:
            skip = self._last((kind, key))
            if skip is not None:
                self._rules[key] = RuleSkip(skip, from_canonical(skip.value))
            self.rules = tuple(self._rules.values())
        self._judge_kinds()

    def _hide(self, kind: MatcherKind, key: Key) -> None:
        if kind is MatcherKind.BOOKMARK:
            self.skipped.discard(cast(str, key))
        elif kind is MatcherKind.RULE:
            del self._rules[key]
            self.rules = tuple(self._rules.values())
        del self.refs[kind][key]
        self._judge_kinds()

    def _judge_kinds(self) -> None:
        self.is_exact = not self.digests and not self.rules
        is_plain = self.is_exact and not self.message_ids
        if self.is_plain != is_plain:
            self.is_plain = is_plain
            for call in self.on_kinds:
                call()

    def _let_expire(self, skip: Skip) -> None:
        if skip.expires_at is None:
            return
        heapq.heappush(self._expiring, (skip.expires_at, next(self._tie), skip))
        # Removed skips stay in the heap until they expire, or until there are many.
        if len(self._expiring) > 2 * (len(self._loose) + len(self._own)) + 1_000:
            self._expiring = [each for each in self._expiring if self._is_kept(each[2])]
            heapq.heapify(self._expiring)


def _with(refs: _Ref | list[_Ref] | None, ref: _Ref) -> _Ref | list[_Ref]:
    if refs is None:
        return ref
    return [*refs, ref] if isinstance(refs, list) else [refs, ref]


def _without(refs: _Ref | list[_Ref], ref: _Ref) -> _Ref | list[_Ref] | None:
    if not isinstance(refs, list):
        return None
    remaining = [each for each in refs if each != ref]
    return remaining[0] if len(remaining) == 1 else remaining


def _key(skip: Skip) -> _Key:
    return skip.kind, key_of(skip)


def _id(skip: Skip) -> int:
    if skip.id is None:
        raise ValueError("A skip of the server's list has an id.")
    return skip.id


def _describe(skip: Skip) -> str:
    number = "of our own" if skip.id is None else str(skip.id)
    return (
        f"{number}, {skip.topic}, {skip.kind} {skip.value[:200]!r}, "
        f"by {skip.by or 'this guard'}: {skip.reason[:200]!r}"
    )
