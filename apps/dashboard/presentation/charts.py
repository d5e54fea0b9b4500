"""Charts as geometry: numbers in, attributes of SVG out. The style sheet colours them.

A chart is stretched to the width of its container, so it holds no text. Each kind of
point has its own shape: a bar, a line for zero, a cross where nothing was measured, an
empty frame for a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, floor, log10, sqrt

HEIGHT = 100
SLOT = 10
# A bar is narrower than its slot; a value above zero is always visible.
BAR = 7
FLATTEST = 2.0
LEVELS = 4


class PointKind(StrEnum):
    BAR = "bar"
    ZERO = "zero"
    NOTHING = "nothing"
    GAP = "gap"


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One point on the axis; its value is None where there was nothing to measure.

    At a gap no data exists at all.
    """

    label: str
    href: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    is_gap: bool = False

    @property
    def kind(self) -> PointKind:
        """Return how the chart draws a point: gap, nothing, zero or bar."""
        if self.is_gap:
            return PointKind.GAP
        if self.value is None:
            return PointKind.NOTHING
        return PointKind.BAR if self.value else PointKind.ZERO


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartSlot:
    """The area of a point: all have the same width, and the height of the chart."""

    x: int
    label: str
    href: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Slots from left to right; `top` is the value at the upper edge.

    Each kind of point is one SVG path in `outlines`.
    """

    slots: Sequence[ChartSlot]
    top: float
    outlines: Mapping[PointKind, str]
    whiskers: str

    @property
    def width(self) -> int:
        return SLOT * len(self.slots)


def chart(points: Sequence[Point], *, least: float, most: float | None = None) -> Chart:
    """Lay out points as a bar chart in SVG.

    Its axis ends at a round number that is at least `least`, but at most `most`.
    """
    top = ceiling(max(least, *(point.value or 0 for point in points)))
    top = top if most is None else min(top, most)
    placed = [(SLOT * at, point) for at, point in enumerate(points)]
    return Chart(
        slots=[ChartSlot(x=x, label=p.label, href=p.href) for x, p in placed],
        top=top,
        outlines={
            kind: "".join(_outline(x, p, top) for x, p in placed if p.kind is kind)
            for kind in PointKind
        },
        whiskers="".join(_whisker(x, p, top) for x, p in placed),
    )


def ceiling(value: float) -> float:
    """Round a chart's highest value up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** floor(log10(value))
    steps = (step * power for step in (1, 2, 5))
    return next((step for step in steps if step >= value * (1 - 1e-9)), 10 * power)


def _outline(x: int, point: Point, top: float) -> str:
    """Return the SVG path of a chart point's shape at `x`."""
    x_left = x + (SLOT - BAR) / 2
    match point.kind:
        case PointKind.BAR:
            height = max(_height(point.value or 0, top), FLATTEST)
            return f"M{x_left} {HEIGHT}v-{height:.1f}h{BAR}V{HEIGHT}z"
        case PointKind.ZERO:
            return f"M{x_left} {HEIGHT}v-{FLATTEST}h{BAR}v{FLATTEST}z"
        case PointKind.NOTHING:
            return f"M{x_left} {HEIGHT - 10}l{BAR} 10m0-10l-{BAR} 10"
        case PointKind.GAP:
            return f"M{x} 0h{SLOT}v{HEIGHT}h-{SLOT}z"


def _whisker(x: int, point: Point, top: float) -> str:
    """Draw a rate's confidence interval, cut at the edge of the chart."""
    # For a zero rate over few messages the interval would fill the chart.
    if not point.value or point.low is None or point.high is None:
        return ""
    low, high = (HEIGHT - _height(end, top) for end in (point.low, point.high))
    return f"M{x + SLOT // 2} {low:.1f}V{high:.1f}"


def _height(value: float, top: float) -> float:
    """Return the height of a chart's value; at most the height of the chart."""
    return HEIGHT * min(value / top, 1)


def _number_text(number: float) -> str:
    """Format a number of a chart for an attribute of SVG."""
    return f"{number:.1f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A square whose size shows its level, so that colour is not needed."""

    level: int
    label: str
    x: str
    y: str
    side: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Heat:
    """Columns of cells; `bounds` are the highest value of each level above zero."""

    cells: Sequence[Cell]
    gaps: Sequence[int]
    bounds: Sequence[float]
    width: int
    height: int


def heat(columns: Sequence[Sequence[Point] | None]) -> Heat:
    """Draw a heat map, one column per sequence of points; None draws a gap."""
    highest = max((p.value or 0 for column in columns for p in column or ()), default=0)
    return Heat(
        cells=list(_cells(columns, highest)),
        gaps=[SLOT * at for at, column in enumerate(columns) if column is None],
        bounds=[highest * (level / LEVELS) ** 2 for level in _levels(highest)],
        width=SLOT * len(columns),
        height=SLOT * max((len(column or ()) for column in columns), default=0),
    )


def _cells(columns: Sequence[Sequence[Point] | None], highest: float) -> Iterator[Cell]:
    """Yield a heat map's square for each value, larger for a higher one."""
    for at, column in enumerate(columns):
        for row, point in enumerate(column or ()):
            if point.value is None:
                continue
            level = _level(point.value, highest)
            side = 2 * (level + 1)
            yield Cell(
                level=level,
                label=point.label,
                x=_number_text(at * SLOT + (SLOT - side) / 2),
                y=_number_text(row * SLOT + (SLOT - side) / 2),
                side=side,
            )


def _levels(highest: float) -> range:
    """Return all levels of a heat map's legend, or none if every value is 0."""
    return range(1, LEVELS + 1) if highest else range(0)


def _level(value: float, highest: float) -> int:
    """Return the size of a heat map's square, by the value's square root; 0 for 0."""
    # The square root keeps ordinary hours visible beside the worst one.
    return ceil(LEVELS * sqrt(value / highest) - 1e-9) if value else 0
