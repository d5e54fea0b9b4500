"""Match skips with messages, and preview a skip on the messages that we have."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import starmap
from typing import NamedTuple, Self

from django.db.models import F, Q

from apps.brokers.adapter_contract import Header
from apps.brokers.models import Topic
from apps.core.errors import Invalid, Refused
from apps.core.hashed_ids import raw, unraw
from apps.core.text_cleaning import storable
from apps.poison.models import Body, Poison, Skip
from apps.poison.querysets import SkipQuerySet
from poisonguard.contract import TEXT_LIMIT, MatcherKind
from poisonguard.contract import Invalid as InvalidRule
from poisonguard.skipping import content_match_rules

DIGEST_BYTES = 32
RECENT = 1_000
SAMPLE = 20
MOST_SKIPS = 20
# Bodies longer than the first limit are not read, nor any beyond the second in all.
MOST_OF_A_BODY = 1024 * 1024
MOST_OF_ALL = 4 * 1024 * 1024
BATCH_SIZE = 50
LONGEST_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Matcher:
    """The condition of a skip; `value` is the bytes of `Skip.value`."""

    kind: MatcherKind
    value: bytes

    @classmethod
    def parse(cls, data: object) -> Self:
        """Parse a skip's matcher {kind, value}; raise Invalid with the remedy."""
        if not isinstance(data, Mapping):
            raise Invalid("matcher", "send an object with kind and value")
        kind, value = data.get("kind"), data.get("value")
        if kind not in list(MatcherKind):
            raise Invalid("matcher/kind", f"use one of {', '.join(MatcherKind)}")
        return cls(
            kind=MatcherKind(str(kind)), value=_PARSERS[MatcherKind(kind)](value)
        )

    @classmethod
    def of(cls, skip: Skip) -> Self:
        """Return the matcher of a stored skip, with a header's name in lower case.

        The releases before stored that name as it was written.
        """
        matcher = cls(kind=MatcherKind(skip.kind), value=bytes(skip.value))
        rule = matcher.rule
        if rule is None:
            return matcher
        value = content_match_rules.canonical(rule).encode()
        return cls(kind=matcher.kind, value=value)

    @classmethod
    def from_poison(cls, poison: Poison, kind: MatcherKind) -> Self:
        """Build a matcher from one of a message's facts; raise Refused without it.

        The facts are its bookmark, its message id and the digest of its body.
        """
        if kind is MatcherKind.BOOKMARK:
            return cls(kind=kind, value=bytes(poison.bookmark))
        if kind is MatcherKind.BODY_DIGEST:
            return cls(kind=kind, value=bytes(poison.digest).hex().encode())
        if kind is MatcherKind.MESSAGE_ID and poison.message_id is not None:
            return cls(kind=kind, value=raw(poison.message_id))
        raise Refused(f"The message {poison.pk} has no {kind} of its own.")

    @property
    def rule(self) -> content_match_rules.Rule | None:
        """Parse the rule of a skip's matcher; None for the other kinds."""
        if self.kind is not MatcherKind.RULE:
            return None
        return content_match_rules.from_canonical(self.value.decode())

    @property
    def wire_value(self) -> str | dict[str, object]:
        """Return the matcher's value as the API shows it: text, or a rule."""
        rule = self.rule
        return unraw(self.value) if rule is None else rule.to_wire()

    def of_poisons(self) -> Q:
        """Build a Q of the poisons with the matcher's bookmark, message id or digest.

        The digest is of their bodies. Rules have none: never call it for a rule.
        """
        if self.kind is MatcherKind.BOOKMARK:
            return Q(bookmark=self.value)
        if self.kind is MatcherKind.BODY_DIGEST:
            return Q(digest=bytes.fromhex(self.value.decode()))
        return Q(message_id=storable(unraw(self.value)))


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchPreview:
    """The result of a preview: `matched` of the `of` newest messages.

    `sample` holds the newest matches. `unread` counts messages that were too large for
    a rule, or that there was no time for; no other number includes them.
    """

    matched: int
    of: int
    unread: int
    sample: tuple[int, ...]


class SkipMatchCount(NamedTuple):
    """A skip, and the number of poisons that it is the first to match."""

    skip: Skip
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleMatches:
    """The skip that matches each poison, of the `looked_at` that were tried."""

    looked_at: int
    unread: int
    skips: dict[int, Skip]

    @property
    def number(self) -> int:
        """Count the poisons that some skip matches."""
        return len(self.skips)

    @property
    def most_frequent(self) -> list[SkipMatchCount]:
        """List the skips that match most poisons; equal ones by their ids."""
        counts = starmap(SkipMatchCount, Counter(self.skips.values()).items())
        ranked = sorted(counts, key=lambda each: (-each.number, each.skip.pk))
        return ranked[:MOST_SKIPS]


def preview(
    *, topic: Topic, consumer_group: str | None, matcher: Matcher, limit: int = RECENT
) -> MatchPreview:
    """Match a topic's newest messages with a matcher, and count them."""
    recent = Poison.objects.filter(topic=topic).recent_first()
    if consumer_group is not None:
        recent = recent.filter(consumer_group=consumer_group)
    rule = matcher.rule
    if rule is not None:
        return _preview_of(rule, list(recent[:limit]))
    newest = recent[:limit]
    matching = Poison.objects.filter(
        matcher.of_poisons(), pk__in=newest.values("pk")
    ).recent_first()
    ids = list(matching.values_list("pk", flat=True))
    return MatchPreview(
        matched=len(ids), of=newest.count(), unread=0, sample=tuple(ids[:SAMPLE])
    )


def _preview_of(
    rule: content_match_rules.Rule, newest: Sequence[Poison]
) -> MatchPreview:
    """Try a skip's rule on messages; return how many match, and some ids."""
    tried, ids = 0, []
    for message in _messages(newest, [rule]):
        tried += 1
        if message.matches(rule):
            ids.append(message.poison.pk)
    return MatchPreview(
        matched=len(ids),
        of=tried,
        unread=len(newest) - tried,
        sample=tuple(ids[:SAMPLE]),
    )


def rules_in_force(topics: Collection[int], *, now: datetime) -> SkipQuerySet:
    """Return the skips by a rule that consumers of these topics apply now."""
    return Skip.objects.in_force(now).filter(kind=MatcherKind.RULE, topic__in=topics)


def rule_matches(
    *,
    last: Callable[[int], Sequence[int]],
    target_ids: Mapping[int, int],
    now: datetime,
    latest: Mapping[int, datetime] | None = None,
) -> RuleMatches:
    """Find which poisons a skip by a rule would stop if they were requeued now.

    Other skips let a redriven message pass. Returns the skip of each; one for a single
    handler version only where no other matches. `target_ids` maps their topics to those
    they would be sent to; skips of other topics stop none. `last` lists the ids of the
    last so many poisons; only the newest are tried. `latest` has a time for each: skips
    that were added later do not count.
    """
    by_rule = rules_in_force(set(target_ids.values()), now=now).order_by(
        F("handler_version").asc(nulls_first=True), "id"
    )
    active = [
        (skip, content_match_rules.from_canonical(bytes(skip.value).decode()))
        for skip in by_rule.select_related("topic")
    ]
    if not active:
        return RuleMatches(looked_at=0, unread=0, skips={})
    newest = list(Poison.objects.filter(pk__in=last(RECENT)).recent_first())
    tried, skips = 0, {}
    for message in _messages(newest, [rule for _, rule in active]):
        tried += 1
        until = None if latest is None else latest[message.poison.pk]
        due = [(skip, rule) for skip, rule in active if not until or skip.at <= until]
        skip = _first_match(message, due, target_ids)
        if skip is not None:
            skips[message.poison.pk] = skip
    return RuleMatches(looked_at=tried, unread=len(newest) - tried, skips=skips)


def _first_match(
    message: MatchableMessage,
    active: Sequence[tuple[Skip, content_match_rules.Rule]],
    target_ids: Mapping[int, int],
) -> Skip | None:
    """Return the first of these skips whose rule would stop a requeue, or None."""
    topic = target_ids.get(message.poison.topic_id)
    group = message.poison.consumer_group
    for skip, rule in active:
        applies = skip.topic_id == topic and skip.consumer_group in {None, group}
        if applies and message.matches(rule):
            return skip
    return None


@dataclass(kw_only=True)
class MatchableMessage:
    """A message to try rules on; its body is parsed once for all of them."""

    poison: Poison
    headers: tuple[Header, ...]
    body: bytes

    @cached_property
    def document(self) -> object:
        """Parse a stored message's body as JSON, to try rules of skips on it."""
        return content_match_rules.read(self.body)

    def matches(self, rule: content_match_rules.Rule) -> bool:
        """Tell whether a skip's rule matches this stored message's headers or body."""
        if isinstance(rule, content_match_rules.PointerRule):
            return rule.matches_document(self.document)
        return rule.matches(body=self.body, headers=self.headers)


def _messages(
    poisons: Sequence[Poison], tried: Sequence[content_match_rules.Rule]
) -> Iterator[MatchableMessage]:
    """Fetch the parts of stored messages that skips' rules read, to try the rules.

    Leaves out large messages. Stops early if it takes too long: a page waits for it.
    """
    deadline = time.monotonic() + LONGEST_SECONDS
    reads_bodies = any(
        isinstance(rule, content_match_rules.PointerRule) for rule in tried
    )
    chosen = list(_small_enough(poisons)) if reads_bodies else list(poisons)
    fields = ("poison_id", "headers", "content")[: 3 if reads_bodies else 2]
    for start in range(0, len(chosen), BATCH_SIZE):
        batch = chosen[start : start + BATCH_SIZE]
        ids = [poison.pk for poison in batch]
        bodies = Body.objects.with_usual_headers().filter(poison_id__in=ids)
        parts = {row[0]: row[1:] for row in bodies.values_list(*fields)}
        for poison in batch:
            if time.monotonic() > deadline:
                return
            if poison.pk in parts:
                yield _message(poison, *parts[poison.pk])


def _message(
    poison: Poison, flat: Sequence[bytes | memoryview], content: bytes = b""
) -> MatchableMessage:
    """Build a message to match from the columns of its body's row."""
    parts = [bytes(part) for part in flat]
    headers = tuple(zip(parts[::2], parts[1::2], strict=True))
    return MatchableMessage(poison=poison, headers=headers, body=bytes(content))


def _small_enough(poisons: Sequence[Poison]) -> Iterator[Poison]:
    """Yield poisons whose bodies are small enough to try skips' rules on.

    Left out are also those that would make too many bytes with the ones before.
    """
    total = 0
    for poison in poisons:
        if poison.size <= MOST_OF_A_BODY and total + poison.size <= MOST_OF_ALL:
            total += poison.size
            yield poison


def _stored_text(value: object) -> bytes:
    """Validate a matcher's text; return it as the skip stores it."""
    if not isinstance(value, str) or not 0 < len(value) <= TEXT_LIMIT:
        raise Invalid("matcher/value", f"send text of 1 to {TEXT_LIMIT} characters")
    return raw(value)


def _stored_digest(value: object) -> bytes:
    """Validate a matcher's SHA-256 in hex; return it as the skip stores it.

    That is 64 hexadecimal digits in small letters, as bytes.
    """
    try:
        digest = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        digest = b""
    if len(digest) != DIGEST_BYTES:
        raise Invalid("matcher/value", "send a SHA-256 as 64 hexadecimal digits")
    return digest.hex().encode()


def _stored_rule(value: object) -> bytes:
    """Validate a matcher's rule; return it in its one canonical spelling."""
    try:
        return content_match_rules.canonical(
            content_match_rules.parse_rule(value)
        ).encode()
    except InvalidRule as reason:
        field = f"matcher/value{reason.pointer}"
        raise Invalid(field, reason.detail) from None


_PARSERS = {
    MatcherKind.BOOKMARK: _stored_text,
    MatcherKind.MESSAGE_ID: _stored_text,
    MatcherKind.BODY_DIGEST: _stored_digest,
    MatcherKind.RULE: _stored_rule,
}
