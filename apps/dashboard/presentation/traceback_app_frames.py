"""Find the frames of a traceback that belong to the application."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

# A traceback can come from any program: read only this many lines.
MOST_LINES = 2000
_FRAME = re.compile(
    r'^\s*File "(?P<file>.+)", line (?P<line>\d{1,9})(?:, in (?P<name>.+))?$'
)
_LIBRARY = re.compile(r"(?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<frozen ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    file: str
    line: int
    function: str
    source: str

    @property
    def is_ours(self) -> bool:
        """Tell whether the frame on a page is of the application, not a library."""
        return _LIBRARY.search(self.file) is None


def app_frames(traceback: str) -> list[Frame]:
    """List for a page a traceback's frames of the application, innermost first."""
    lines = traceback.splitlines()[:MOST_LINES]
    frames = [_frame(line, after) for line, after in pairwise([*lines, ""])]
    return [frame for frame in reversed(frames) if frame and frame.is_ours]


def _frame(line: str, after: str) -> Frame | None:
    """Parse for a page a traceback's line that names a frame, with its source.

    Returns None for another line.
    """
    match = _FRAME.match(line)
    if not match:
        return None
    source = "" if _FRAME.match(after) else after.strip()
    return Frame(
        file=match["file"],
        line=int(match["line"]),
        function=match["name"] or "<module>",
        source=source,
    )
