"""The progress of a subscription: pure arithmetic, without clock, lock or network.

Numbers are sparse: of a publisher's numbers, this subscription may get only some.
Messages are received in order, so settling one also settles every number since the one
received before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from poisonguard.positions.whole_number_ranges import Ranges, Run
from poisonguard.skipping.skip_list import Fence

SEQ_LIMIT = 2**63 - 2
RUNS_LIMIT = 4_096  # what the server stores of one publisher
RUNS_PRESSED = RUNS_LIMIT * 3 // 4
IN_FLIGHT_LIMIT = 65_536


class Start(StrEnum):
    """Where a subscription without a position begins."""

    EARLIEST = "earliest"  # at the first message the broker still has
    NOW = "now"  # at the next published message
    MOST_RECENT = "most_recent"  # where the broker starts an unknown reader


@dataclass(frozen=True, kw_only=True, slots=True)
class Resume:
    """Where to read on: after this number of each publisher, None for its first.

    `start` counts only while no publisher is known.
    """

    positions: dict[str, int | None]
    start: Start


@dataclass(slots=True)
class Track:
    """The progress of a subscription with the messages of one publisher."""

    settled: Ranges = field(default_factory=Ranges)
    # Each message in flight, with the number received before it.
    in_flight: dict[int, int] = field(default_factory=dict)
    last: int = -1  # received
    persisted: int | None = None
    # Settled, but not confirmed by the server.
    unwritten: Ranges = field(default_factory=Ranges)
    messages: int = 0  # settled, and not confirmed
    owes_persisted: bool = False

    @classmethod
    def from_server(cls, *, settled: Iterable[Run], persisted: int | None) -> Self:
        """Create a publisher's track from the server's state of the position."""
        track = cls(settled=Ranges(settled), persisted=persisted)
        track.last = track.processed if track.processed is not None else -1
        return track

    @property
    def processed(self) -> int | None:
        """Return the publisher's number up to which all messages are settled."""
        first = next(iter(self.settled), None)
        return first[1] if first is not None and first[0] == 0 else None

    @property
    def resume(self) -> int | None:
        """Return the message number to read on after: settled and replicated."""
        if self.processed is None or self.persisted is None:
            return self.processed
        return min(self.processed, self.persisted)

    @property
    def has_begun(self) -> bool:
        """Tell whether any message of this publisher was received or settled."""
        return self.last >= 0 or len(self.settled) > 0

    def begin_at(self, seq: int) -> None:
        """Settle all message numbers before the first one, which were not requested."""
        if self.last < 0 < seq:
            self._add_settled(0, seq - 1)
            self.last = seq - 1

    def is_pressed(self, seq: int, *, in_flight_limit: int) -> bool:
        """Tell whether this message must wait, as too many are in flight or missing.

        It waits until others are settled.
        """
        if seq in self.in_flight:
            return False
        # A message that fills a hole reduces the pressure, so it is admitted.
        crowded = len(self.settled) >= RUNS_PRESSED and seq > self.settled.top
        return crowded or len(self.in_flight) >= in_flight_limit

    def pressure(self, in_flight_limit: int) -> float:
        """Return how near the track is to taking no further message: 1 at the limit."""
        crowded = len(self.settled) / RUNS_PRESSED
        return min(1.0, max(crowded, len(self.in_flight) / in_flight_limit))

    def receive(self, seq: int) -> None:
        """Note a publisher's message as in flight, unless it is already, or settled."""
        if seq in self.in_flight or seq in self.settled:
            return
        if seq > self.last:
            self.in_flight[seq] = self.last
            self.last = seq
        else:
            self._receive_late(seq)

    def _receive_late(self, seq: int) -> None:
        """Note a message that came after later ones as in flight."""
        later = min((n for n in self.in_flight if n > seq), default=None)
        if later is None or self.in_flight[later] >= seq:
            self.in_flight[seq] = seq - 1
        else:
            self.in_flight[seq] = self.in_flight[later]
            self.in_flight[later] = seq

    def settle(self, seq: int) -> bool:
        """Settle a track's message in flight; return False for any other."""
        before = self.in_flight.pop(seq, None)
        if before is None:
            return False
        self._add_settled(before + 1, seq)
        self.messages += 1
        return True

    def _add_settled(self, first: int, last: int) -> None:
        """Add a run of messages to the settled and to the unwritten numbers."""
        self.settled.add(first, last)
        self.unwritten.add(first, last)

    def persist(self, seq: int) -> None:
        """Note up to which number the broker has replicated; ignore a lesser one."""
        if self.persisted is None or seq > self.persisted:
            self.persisted = seq
            self.owes_persisted = True

    def learn(self, other: Track) -> None:
        """Merge the server's state of a position from before this track began."""
        for first, last in other.settled:
            self.settled.add(first, last)
        if other.persisted is not None:
            self.persist(other.persisted)

    def take_changes(self) -> Changes | None:
        """Take a position's unconfirmed changes, the lowest runs first.

        Whole runs instead of their new parts: the server merges them, and this repairs
        what it may have lost.
        """
        if not self.unwritten and not self.owes_persisted:
            return None
        runs = list(self.settled.around(self.unwritten))
        self.unwritten, self.owes_persisted = Ranges(runs[RUNS_LIMIT:]), False
        return Changes(
            runs=runs[:RUNS_LIMIT],
            # A part's share of the messages is unknown: the last part confirms all.
            messages=0 if self.unwritten else self.messages,
            received=self.last if self.last >= 0 else None,
            persisted=self.persisted,
        )

    def confirm(self, changes: Changes) -> None:
        """Lower a track's count of unconfirmed messages by those now confirmed."""
        self.messages -= changes.messages

    def give_back(self, changes: Changes) -> None:
        """Put back a position's changes that could not be written."""
        for first, last in changes.runs:
            self.unwritten.add(first, last)
        self.owes_persisted = self.persisted is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """The unconfirmed changes of one publisher: `messages` settled in these runs."""

    runs: list[Run]
    messages: int
    received: int | None
    persisted: int | None


@dataclass(slots=True)
class Subscription:
    """One reader of one topic: its tracks by publisher, and its right to settle."""

    sub_id: str
    topic: str | None
    start: Start
    epoch: int | None = None  # None until the server has opened it
    is_kept: bool = True
    is_fenced: bool = False
    trouble: str | None = None
    other_topic: str | None = None
    tracks: dict[str, Track] = field(default_factory=dict)
    # The tracks of publishers whose numbers began again; the server cannot store them
    # beside the earlier numbers.
    restarts: dict[str, Track] = field(default_factory=dict)
    # Where the broker was asked to begin, if it was, and the last number since.
    delivery_start: dict[str, int] | None = None
    last_arrivals: dict[str, int] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)

    @property
    def resume(self) -> Resume:
        """Return after which number of each publisher a subscription resumes.

        All messages up to it are settled.
        """
        begun = {name: it for name, it in self.current.items() if it.has_begun}
        positions = {name: track.resume for name, track in begun.items()}
        return Resume(positions=positions, start=self.start)

    @property
    def current(self) -> dict[str, Track]:
        """Return a subscription's current track of each publisher."""
        return {**self.tracks, **self.restarts}

    def track(self, publisher: str) -> Track | None:
        """Return a publisher's current track; None before its first message."""
        return self.restarts.get(publisher) or self.tracks.get(publisher)

    def note_delivery_start(self, resume: Resume) -> None:
        """Note where the broker is asked to begin; forget the last arrivals."""
        positions = resume.positions.items()
        self.delivery_start = {
            name: -1 if seq is None else seq for name, seq in positions
        }
        self.last_arrivals, self.doubtful = {}, set()

    def arrive(self, publisher: str, seq: int) -> bool:
        """Note a message's arrival; return whether its publisher's numbers began again.

        Within a delivery, a publisher's numbers only grow. A delivery requested for one
        publisher starts after the requested place. For several publishers a broker may
        start at the earliest place: numbers before a publisher's own are doubtful.
        """
        before, self.last_arrivals[publisher] = self.last_arrivals.get(publisher), seq
        if self.delivery_start is None:
            return False
        if before is not None:
            begins_again = seq < before
        else:
            begins_again = seq <= self.delivery_start.get(publisher, -1)
        if begins_again and before is None and len(self.delivery_start) > 1:
            self.doubtful.add(publisher)
        elif begins_again:
            self.restarts[publisher] = Track()
        return begins_again

    def is_settled(self, publisher: str, seq: int) -> bool:
        """Tell whether a message was settled before, and is not a doubtful one.

        It is doubtful where its publisher's numbers may have begun again.
        """
        track = self.track(publisher)
        if track is None or seq not in track.settled:
            return False
        starts = self.delivery_start or {}
        return publisher not in self.doubtful or seq > starts.get(publisher, -1)

    @property
    def can_store_positions(self) -> bool:
        """Tell whether this holder opened the subscription, and is not fenced.

        Then the server would accept its changes of positions.
        """
        return self.epoch is not None and not self.is_fenced

    @property
    def awaits_opening(self) -> bool:
        """Tell whether the server has yet to open the subscription."""
        return self.is_kept and self.epoch is None

    def is_older_than(self, fence: Fence) -> bool:
        """Tell whether a fence ends this holder of the subscription."""
        if self.epoch is None or self.is_fenced or fence.topic != self.topic:
            return False
        return fence.epoch > self.epoch

    def learn_topic(self, topic: str) -> bool:
        """Adopt the topic of a message for the subscription; True if it had none."""
        if self.topic is None:
            self.topic = topic
            return True
        if topic != self.topic:
            self.other_topic = topic
        return False

    def receive(self, publisher: str, seq: int) -> None:
        """Note a message as in flight, on a new track for a new publisher."""
        track = self.track(publisher)
        if track is None:
            track = self.tracks[publisher] = Track()
            if self.start is Start.NOW:
                track.begin_at(seq)
        track.receive(seq)

    def settle(self, publisher: str, seq: int) -> bool:
        """Settle a message in flight; return False for any other."""
        tracks = self.restarts.get(publisher), self.tracks.get(publisher)
        return any(track.settle(seq) for track in tracks if track is not None)

    def learn(self, opened: Subscription) -> None:
        """Merge the server's state of a position into what was received here."""
        self.epoch, self.topic = opened.epoch, opened.topic or self.topic
        for publisher, track in opened.tracks.items():
            self.tracks.setdefault(publisher, Track()).learn(track)

    @property
    def warnings(self) -> list[str]:
        """List problems of a subscription's position for the store's health.

        A person should look at them.
        """
        lines = [self.trouble] if self.trouble is not None else []
        if not self.is_kept:
            lines.append(
                f"The sub id {self.sub_id} was made by the client: its position is not"
                " kept, and is lost at a restart. Give the subscription a"
                " sub_id that stays the same."
            )
        lines += map(self.begun_again, sorted(self.doubtful.union(self.restarts)))
        if self.other_topic is not None:
            lines.append(
                f"The subscription {self.sub_id} gets messages of {self.other_topic},"
                f" but its position is kept under {self.topic}: if they are two"
                " subscriptions, give each a sub id of its own."
            )
        return lines

    def begun_again(self, publisher: str) -> str:
        """Describe that a publisher's numbers began again, and the remedy."""
        did = "may have begun" if publisher not in self.restarts else "began"
        return (
            f"The numbers of publisher {publisher} {did} again on {self.sub_id}: its"
            " messages are handled, but their position is not kept, so they come again"
            " after a restart. If its log or store was removed, stop this consumer,"
            " move the position to its start in Poisonweb, and start it again."
        )
