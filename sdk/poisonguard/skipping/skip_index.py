"""Find skips in force by what they match, without a lock.

`skipped` and `refs` are a plain set and plain dicts, changed in place and never
replaced, so readers may keep them; `rules` is a tuple that is replaced whole.
`bookmarks`, `message_ids` and `digests` create `Skip` values on access.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from poisonguard.contract import MatcherKind, Skip
from poisonguard.skipping.content_match_rules import Rule, from_canonical
from poisonguard.skipping.skip_table import Key, SkipTable, key_of

SkipKey = tuple[MatcherKind, Key]
# A skip, or its row in the table of the last snapshot.
Ref = Skip | int
Refs = dict[Key, Ref | list[Ref]]
_KeyT = TypeVar("_KeyT", str, bytes)


@dataclass(frozen=True, slots=True)
class RuleSkip:
    """A skip by rule, with its parsed rule."""

    skip: Skip
    rule: Rule


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


class SkipLookup:
    """The skips in force, by kind and key.

    `is_exact` is True while no digest or rule skip is in force, `is_plain` while all
    skips in force match by bookmark; `on_kinds` is called when `is_plain` changes.
    """

    def __init__(self, skip_of: Callable[[Ref], Skip]) -> None:
        self.refs: dict[MatcherKind, Refs] = {kind: {} for kind in MatcherKind}
        self.skipped: set[str] = set()  # faster to look up than a dict
        self.bookmarks: SkipsByKey[str] = self._skips_by_key(MatcherKind.BOOKMARK)
        self.message_ids: SkipsByKey[str] = self._skips_by_key(MatcherKind.MESSAGE_ID)
        self.digests: SkipsByKey[bytes] = self._skips_by_key(MatcherKind.BODY_DIGEST)
        self.rules: tuple[RuleSkip, ...] = ()
        self.is_exact = True
        self.is_plain = True
        self.on_kinds: list[Callable[[], None]] = []
        self._skip_of = skip_of
        self._rules: dict[Key, RuleSkip] = {}
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Create a new lock of the skips: the parent's may be held for ever."""
        self._writing = threading.RLock()

    def __len__(self) -> int:
        return sum(map(len, self.refs.values()))

    def _skips_by_key(self, kind: MatcherKind) -> SkipsByKey[_KeyT]:
        """Return a view of the skips of one kind that creates them on access."""
        return SkipsByKey(self.refs[kind], lambda key: self._last((kind, key)))

    def _last(self, key: SkipKey) -> Skip | None:
        """Return the last skip with this key, the one in force."""
        # Row numbers change with each snapshot.
        with self._writing:
            refs = self.refs[key[0]].get(key[1])
            if refs is None:
                return None
            return self._skip_of(refs[-1] if isinstance(refs, list) else refs)

    # Changes, which need the lock

    def _put_ref(self, key: SkipKey, ref: Ref) -> None:
        """Put a skip into force: of several skips with its key, the last one counts."""
        put_ref(self.refs, key, ref)
        self._show(*key)

    def _take_ref(self, key: SkipKey, ref: Ref) -> None:
        """Take a skip out of force; other skips with its key stay."""
        kind, name = key
        remaining = _without(self.refs[kind][name], ref)
        if remaining is None:
            self._hide(kind, name)
        else:
            self.refs[kind][name] = remaining
            self._show(kind, name)

    def _replace_refs(self, new_refs: Mapping[MatcherKind, Refs]) -> None:
        """Replace all skips; add new ones first, so that no common skip is missing."""
        for kind, refs in new_refs.items():
            self._replace_refs_of(kind, refs)

    def _replace_refs_of(self, kind: MatcherKind, new_refs: Refs) -> None:
        """Replace all skips of a kind; new ones are added before others go."""
        refs = self.refs[kind]
        if kind is MatcherKind.BOOKMARK:
            marks = cast(Iterable[str], new_refs)
            # Updating with all of them would allocate room for twice as many.
            self.skipped.update(marks if not refs else self._not_skipped_yet(marks))
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
        self._update_kind_flags()

    def _not_skipped_yet(self, marks: Iterable[str]) -> Iterator[str]:
        """Yield those bookmarks of new skips that the set of skipped ones lacks."""
        return (mark for mark in marks if mark not in self.skipped)

    def _show(self, kind: MatcherKind, key: Key) -> None:
        """Have readers match messages by the skips with this key."""
        if kind is MatcherKind.BOOKMARK:
            self.skipped.add(cast(str, key))
        elif kind is MatcherKind.RULE:
            skip = self._last((kind, key))
            if skip is not None:
                self._rules[key] = RuleSkip(skip, from_canonical(skip.value))
            self.rules = tuple(self._rules.values())
        self._update_kind_flags()

    def _hide(self, kind: MatcherKind, key: Key) -> None:
        """Remove a key of skips and its last skip from all that readers look at."""
        if kind is MatcherKind.BOOKMARK:
            self.skipped.discard(cast(str, key))
        elif kind is MatcherKind.RULE:
            del self._rules[key]
            self.rules = tuple(self._rules.values())
        del self.refs[kind][key]
        self._update_kind_flags()

    def _update_kind_flags(self) -> None:
        """Note which kinds of skip there are; call `on_kinds` if `is_plain` changed."""
        self.is_exact = not self.digests and not self.rules
        is_plain = self.is_exact and not self.message_ids
        if self.is_plain != is_plain:
            self.is_plain = is_plain
            for call in self.on_kinds:
                call()


def full_key(skip: Skip) -> SkipKey:
    """Return the kind of a skip with the key that it matches by."""
    return skip.kind, key_of(skip)


def refs_of(table: SkipTable) -> dict[MatcherKind, Refs]:
    """Return a skip table's rows by kind and key, several rows as a list."""
    refs_by_kind: dict[MatcherKind, Refs] = {kind: {} for kind in MatcherKind}
    for row, kind, key in table.rows():
        refs = refs_by_kind[kind]
        if key in refs:
            refs[key] = _with(refs[key], row)
        else:
            refs[key] = row
    return refs_by_kind


def put_ref(refs_by_kind: Mapping[MatcherKind, Refs], key: SkipKey, ref: Ref) -> None:
    """Add a skip behind other skips with its key; the last one is in force."""
    refs = refs_by_kind[key[0]]
    refs[key[1]] = _with(refs.get(key[1]), ref)


def _with(refs: Ref | list[Ref] | None, ref: Ref) -> Ref | list[Ref]:
    """Return refs of skips with another one behind them, a list if several."""
    if refs is None:
        return ref
    return [*refs, ref] if isinstance(refs, list) else [refs, ref]


def _without(refs: Ref | list[Ref], ref: Ref) -> Ref | list[Ref] | None:
    """Return refs of skips without one of them; None if it was the only one."""
    if not isinstance(refs, list):
        return None
    remaining = [each for each in refs if each != ref]
    return remaining[0] if len(remaining) == 1 else remaining
