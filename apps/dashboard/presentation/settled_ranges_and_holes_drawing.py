"""A publisher's messages drawn as a line: settled ranges, holes, and open poisons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from apps.bookmarks.models import Mark
from apps.bookmarks.runs_of_settled_positions import Runs
from apps.triage.services.position_moves import LocatedPoison

WIDTH = 1000
MARGIN = 20
# A narrower block would be invisible.
THINNEST = 2
MOST_DRAWN = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class SettledBlock:
    """A range of settled numbers."""

    x: int
    width: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    x: int
    poison: LocatedPoison


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionLine:
    """The drawing; `watermark` and `head` are x coordinates, `summary` is its text."""

    blocks: Sequence[SettledBlock]
    pins: Sequence[Pin]
    watermark: int
    head: int | None
    low: int
    high: int
    summary: str


def draw(
    mark: Mark, *, head: int | None, poisons: Sequence[LocatedPoison]
) -> PositionLine:
    """Lay out a position's line: settled runs, open poisons, watermark and head.

    It begins a bit before the watermark or the first open poison.
    """
    runs = mark.settled if mark.settled is not None else ((0, mark.processed),)
    low, high = _ends(mark, runs, head, poisons)
    scale = _Scale(low=low, high=high)
    return PositionLine(
        blocks=list(_blocks(runs, scale))[:MOST_DRAWN],
        pins=[Pin(x=scale.at(p.place.seq), poison=p) for p in poisons[:MOST_DRAWN]],
        watermark=scale.at(mark.processed),
        head=None if head is None else scale.at(head),
        low=low,
        high=high,
        summary=_summary(mark, head, poisons),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    low: int
    high: int

    def at(self, seq: int) -> int:
        """Return the x coordinate of a sequence number; floats would lose digits."""
        inside = min(max(seq, self.low), self.high)
        span = max(self.high - self.low, 1)
        return MARGIN + (inside - self.low) * (WIDTH - 2 * MARGIN) // span


def _ends(
    mark: Mark, runs: Runs, head: int | None, poisons: Sequence[LocatedPoison]
) -> tuple[int, int]:
    """Return the lowest and the highest sequence number to draw."""
    places = [poison.place.seq for poison in poisons]
    marks = [seq for seq in (head, mark.received, mark.persisted) if seq is not None]
    high = max(mark.processed, *places, *marks, *(run[1] for run in runs), 0)
    low = min(mark.processed, *places, *marks)
    # Show some settled numbers before the first hole.
    return max(0, low - max((high - low) // 4, 1)), high


def _blocks(runs: Runs, scale: _Scale) -> Iterator[SettledBlock]:
    """Yield a position's settled runs as rectangles."""
    for first, last in runs:
        if last >= scale.low:
            x = scale.at(first)
            yield SettledBlock(x=x, width=max(scale.at(last) - x, THINNEST))


def _summary(mark: Mark, head: int | None, poisons: Sequence[LocatedPoison]) -> str:
    """Describe a position's line in words, for people who cannot see it."""
    parts = [
        f"settled up to {mark.processed}"
        if mark.processed >= 0
        else "nothing settled yet",
        f"{_plural(len(mark.ahead), 'run')} settled ahead" if mark.ahead else "",
        "" if head is None else f"the topic ends at {head}",
        _plural(len(poisons), "open poison") if poisons else "no open poison",
    ]
    return ", ".join(filter(None, parts))


def _plural(number: int, noun: str) -> str:
    """Count a noun for the summary of a consumer's position: "1 run", "2 runs"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
