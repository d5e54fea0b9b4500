"""The local copy of one skip list: what this consumer skips.

A new snapshot adds new skips before it removes old ones, so that skips in both are
never missing; see `skip_lookup` for how messages are looked up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from poisonguard.contract import Skip
from poisonguard.skipping.listed_skips import ListedSkips
from poisonguard.skipping.own_skips import OWN_LIMIT, OwnSkips
from poisonguard.skipping.skip_change_counts_and_log_lines import SkipChanges
from poisonguard.skipping.skip_expiries import Expiries
from poisonguard.skipping.skip_index import (
    Ref,
    RuleSkip,
    SkipKey,
    SkipLookup,
    full_key,
    put_ref,
    refs_of,
)
from poisonguard.skipping.skip_list_line_format import EPOCH
from poisonguard.skipping.skip_table import SharedFields, SkipTable
from poisonguard.skipping.skips_of_maybe_handled_messages import Doubt, Doubts

__all__ = ["Doubt", "Fence", "RuleSkip", "SkipList"]

log = logging.getLogger(__name__)

# Seconds without an event after which a list was cut off (pings come every 15 s).
CUT_OFF = 60.0
LISTED = "the server's list has it now"  # why an own skip is removed
LACKING = "the server's list is without it"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fence:
    """Another client opened this position under a newer epoch."""

    client_name: str
    sub_id: str
    topic: str
    epoch: int


class SkipList(SkipLookup):
    """The skips of one topic that apply to one consumer group and handler version.

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
        own_limit: int = OWN_LIMIT,
    ) -> None:
        self.topic = topic
        self.consumer_group = consumer_group
        self.handler_version = handler_version
        self.on_fence: list[Callable[[Fence], None]] = []
        self._tell_applied = tell_applied
        self._current_at: float | None = None
        self._current_since = 0.0
        self._change_log = SkipChanges()
        self.changes = self._change_log.counts
        self._doubts = Doubts()
        self._listed = ListedSkips(self._packed((), EPOCH))
        self._own = OwnSkips(limit=own_limit)
        self._expiries = Expiries(self._is_kept)
        super().__init__(self._listed.skip)

    @property
    def age(self) -> float | None:
        """Return the seconds since the skip list was current; None before loading."""
        return None if self._current_at is None else time.monotonic() - self._current_at

    @property
    def suspects(self) -> dict[int, Doubt]:
        """Return the messages that another consumer failed on; not skipped yet."""
        return self._doubts.suspects

    # What the guard does

    def add_own(self, skip: Skip) -> None:
        """Skip a message from now on, also offline, until the server's list decides."""
        key = full_key(skip)
        with self._writing:
            if self._last(key) is not None:
                return
            if (surplus := self._own.surplus_key) is not None:
                self._drop_own(surplus, "too many")
            self._own.add(key, skip, now=time.monotonic())
            self._put_in(key, skip)

    def applied(self, skip: Skip) -> None:
        """Count, also for the server, that a message was skipped because of a skip."""
        self._change_log.applied(skip)
        with self._writing:
            self.changes["skipped"] += 1
            key = full_key(skip)
            if skip.id is None and key in self._own:
                # Its id is not known yet: reported when the server's skip replaces it.
                self._own.count_applied(key)
                return
            # The server's skip may have replaced it since, or it may have ended.
            listed = (self._last(key) or skip) if skip.id is None else skip
        if listed.id is not None:
            self._tell_applied(listed.id, 1)

    def skips_to_check(self) -> list[Doubt]:
        """Return the skips and suspects to end if we have handled their messages."""
        with self._writing:
            return self._doubts.all(now=time.monotonic())

    def settle_doubt(self, skip_id: int) -> None:
        """Drop a doubted skip: the server knows that its message was handled."""
        with self._writing:
            self._doubts.settle(skip_id)

    # What the stream does

    def suspect(self, doubt: Doubt, *, now: datetime) -> None:
        """Note a message that another consumer failed on; do not skip it yet."""
        with self._writing:
            if self._applies(doubt.skip, now):
                self.suspects[_id(doubt.skip)] = doubt

    def doubt(self, doubt: Doubt) -> None:
        """Check for some time whether we handled the message of a new skip."""
        with self._writing:
            if self._listed.ref(_id(doubt.skip)) is not None:
                self._doubts.add(_id(doubt.skip), doubt)

    def put_listed(self, skip: Skip, *, now: datetime) -> None:
        """Add or change a skip from the stream, replacing an equal own skip."""
        with self._writing:
            skip_id = _id(skip)
            self._doubts.turn_into_new_skip(skip_id, now=time.monotonic())
            existing = self._listed.ref(skip_id)
            if existing is not None and self._listed.skip(existing) == skip:
                return
            if self._applies(skip, now):
                key = full_key(skip)
                self._listed.add(skip_id, skip)
                self._put_in(key, skip)
                self._drop_own(key, LISTED, in_place_of=skip)
            if existing is not None:
                self._take_out(existing, "changed")
            self._pack()

    def remove(self, skip_id: int, *, because: str) -> None:
        """Remove a skip that the server ended from this guard's list.

        Or a suspect, with the own skip of its message.
        """
        with self._writing:
            suspected = self.suspects.get(skip_id)
            self._doubts.settle(skip_id)
            ref = self._listed.ref(skip_id)
            if ref is not None:
                self._take_out(ref, because)
                self._pack()
            elif suspected is not None:
                self._drop_own(full_key(suspected.skip), because)

    def table(self, *, now: datetime) -> SkipTable:
        """Create a table of skips for `load` that accepts those which apply to us."""
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
        if isinstance(skips, SkipTable):
            table = skips
            table.close()
        else:
            table = self._packed(skips, now)
        with self._writing:
            self.suspects.clear()
            for doubt in suspects:
                if table.row(_id(doubt.skip)) is None:
                    self.suspect(doubt, now=now)
            before, loose = self._listed.table, self._listed.loose
            self._replace_table(table)
            self._change_log.replaced(before, loose, table)
            suspected = {full_key(doubt.skip) for doubt in self.suspects.values()}
            if asked_at is not None:
                for key in self._own.keys_answered_by(asked_at):
                    if key not in suspected:
                        self._drop_own(key, LACKING)
        self.touch()

    def touch(self) -> None:
        """Mark the skip list as current now."""
        with self._writing:
            now = time.monotonic()
            if self._current_at is None or now - self._current_at > CUT_OFF:
                # Reports made meanwhile may reach the server only now.
                self._current_since = now
            self._current_at = now
            self._change_log.is_loaded = True
            while key := self._own.overdue_key(now, current_since=self._current_since):
                self._drop_own(key, LACKING)

    def expire(self, now: datetime) -> None:
        """Remove expired skips from the list."""
        with self._writing:
            for skip in self._expiries.take_expired(now):
                if skip.id is None:
                    self._drop_own(full_key(skip), "expired")
                else:
                    self._take_out(skip, "expired")
            for row in self._listed.expired(now):
                self._take_out(row, "expired")
            self._pack()

    @property
    def next_expiry(self) -> datetime | None:
        """Return when the first skip of the list expires; None if none does."""
        with self._writing:
            expiries = self._expiries.first, self._listed.next_expiry
            return min(filter(None, expiries), default=None)

    def fence(self, fence: Fence) -> None:
        """Call each function of `on_fence` with a fence; log what they raise."""
        for tell in list(self.on_fence):
            try:
                tell(fence)
            except Exception:
                log.exception("who was to be told of a fence failed: %s", fence)

    # How it is kept

    def _concerns(self, skip: Skip | SharedFields) -> bool:
        """Tell whether a skip is for our consumer group and handler version."""
        is_of_ours = skip.consumer_group in (None, self.consumer_group)
        return is_of_ours and skip.handler_version in (None, self.handler_version)

    def _applies(self, skip: Skip, now: datetime) -> bool:
        """Tell whether a skip is for us, and has not expired."""
        is_over = skip.expires_at is not None and skip.expires_at <= now
        return self._concerns(skip) and not is_over

    def _is_kept(self, skip: Skip) -> bool:
        """Tell whether this very skip is still in force, loose or own."""
        return self._listed.is_loose(skip) or (skip.id is None and self._own.has(skip))

    def _put_in(self, key: SkipKey, skip: Skip) -> None:
        """Put a skip into force, to expire at its time, and log it."""
        self._put_ref(key, skip)
        self._let_expire(skip)
        self._change_log.added(skip)

    def _let_expire(self, skip: Skip) -> None:
        """Note when a loose or own skip expires, to remove it then."""
        kept_count = len(self._listed.loose) + len(self._own)
        self._expiries.add(skip, kept_count=kept_count)

    def _take_out(self, ref: Ref, because: str) -> None:
        """Take a skip out of force, and log why."""
        skip = self._listed.skip(ref)
        self._take_ref(full_key(skip), ref)
        self._listed.remove(ref)
        self._change_log.removed(skip, because)

    def _drop_own(
        self, key: SkipKey, because: str, *, in_place_of: Skip | None = None
    ) -> None:
        """Remove the own skip with this key, if any; `in_place_of` takes its count."""
        if key not in self._own:
            return
        own, times = self._own.pop(key)
        self._take_out(own, because)
        if in_place_of is not None and times:
            self._tell_applied(_id(in_place_of), times)

    # A whole snapshot

    def _packed(self, skips: Iterable[Skip], now: datetime) -> SkipTable:
        """Return a closed table of those skips that apply to us."""
        table = self.table(now=now)
        for skip in skips:
            table.add(skip)
        table.close()
        return table

    def _pack(self) -> None:
        """Pack loose skips into the skip table once there are many."""
        if self._listed.is_crowded:
            self._replace_table(self._packed(self._listed.all(), EPOCH))

    def _replace_table(self, table: SkipTable) -> None:
        """Replace the skips in force by a table, and keep own skips."""
        refs_by_kind = refs_of(table)
        own_keys = [key for key, _ in self._own if key[1] in refs_by_kind[key[0]]]
        for key, own in self._own:
            put_ref(refs_by_kind, key, own)
        self._listed.replace(table)
        self._expiries.clear()
        for _, own in self._own:
            self._let_expire(own)
        self._replace_refs(refs_by_kind)
        for own_key in own_keys:
            same = refs_by_kind[own_key[0]][own_key[1]]
            skip = self._listed.skip(same[0] if isinstance(same, list) else same)
            self._drop_own(own_key, LISTED, in_place_of=skip)


def _id(skip: Skip) -> int:
    """Return the id of a skip of the server's list; raise ValueError without one."""
    if skip.id is None:
        raise ValueError("A skip of the server's list has an id.")
    return skip.id
