"""The state of a bookmark store, for health pages and logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from poisonguard.positions.subscription_progress import Subscription, Track


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The state of a store; `written_ago` is in seconds, None before the first write.

    After a kill -9 the `unwritten` messages and those `in_flight` would come again. At
    a `pressure` of 1, `received` waits until other messages are settled.
    """

    written_ago: float | None
    unwritten: int
    in_flight: int
    runs: int
    pressure: float
    duplicates: int
    ignored: int
    fenced: frozenset[str]
    warnings: tuple[str, ...]


def health(
    subscriptions: Sequence[Subscription],
    *,
    in_flight_limit: int,
    written_ago: float | None,
    trouble: str | None,
    counts: Mapping[str, int],
) -> Health:
    """Compute the health of a position store; the caller holds its lock."""
    tracks = [track for it in subscriptions for track in _all_tracks(it)]
    writable = [it for it in subscriptions if it.is_kept and not it.is_fenced]
    unwritten = [track.messages for it in writable for track in _all_tracks(it)]
    warnings = [line for it in subscriptions for line in it.warnings]
    return Health(
        written_ago=written_ago,
        unwritten=sum(unwritten),
        in_flight=sum(len(track.in_flight) for track in tracks),
        runs=max((len(track.settled) for track in tracks), default=0),
        pressure=max((t.pressure(in_flight_limit) for t in tracks), default=0.0),
        duplicates=counts["duplicates"],
        ignored=counts["ignored"],
        fenced=frozenset(it.sub_id for it in subscriptions if it.is_fenced),
        warnings=(*warnings, *([trouble] if trouble else [])),
    )


def _all_tracks(subscription: Subscription) -> Iterator[Track]:
    """Return the tracks of a subscription, those of restarted numbers included."""
    return chain(subscription.tracks.values(), subscription.restarts.values())
