"""Capture of new failures in batches of 500, on a durable Postgres as `make run` has.

The baseline is a COPY of the same rows into the same three tables, with their indexes
and foreign keys; with a worktree of an earlier commit as argument, its capture is
measured in turn, too, on servers of its own. Target: at least 0.6 of the COPY, or 2.5
times the commit 9a46585, whichever is less; a replay of pure duplicates is not slower
than the first insertion.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

NUMBER = int(os.environ.get("NUMBER", "5000"))
BATCH = int(os.environ.get("BATCH", "500"))
BATCHES = NUMBER // BATCH
OURS, COPY, AGAIN, EARLIER = "capture", "COPY", "capture again", "capture of before"


def serve() -> None:
    """Capture or copy failures into Postgres as standard input asks; print seconds."""
    sys.path.insert(0, str(Path(__file__).parent))
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    import _failures_to_capture as captures  # type: ignore[import-not-found]

    topic = captures.topic()
    # The problems exist, as they do when an installation is a day old.
    captures.capture(captures.reports(captures.PROBLEMS), topic)
    written: list[Any] = []
    print("ready", flush=True)
    for line in sys.stdin:
        work, batches = line.strip(), written
        act: Callable[[Any], None] = partial(captures.capture, topic=topic)
        if work == OURS:
            written = batches = [captures.reports(BATCH) for _ in range(BATCHES)]
        elif work == COPY:
            batches = [captures.rows(BATCH, topic) for _ in range(BATCHES)]
            act = captures.copy
        start = time.perf_counter()
        _each(act, batches)
        print(time.perf_counter() - start, flush=True)


def _each(act: Callable[[Any], None], batches: list[Any]) -> None:
    """Call a function that stores failures for each batch of the benchmark."""
    for batch in batches:
        act(batch)


def main(earlier: Path | None) -> None:
    """Time captures of failures and COPY in turn; print the ratios of the medians."""
    # `serve` runs on an earlier tree, too, which has no such module.
    from benchmarks._median_times_by_source_tree import median_seconds

    before = (EARLIER, earlier) if earlier else None
    medians = median_seconds(__file__, (OURS, AGAIN, COPY), earlier=before)
    for name, median in medians.items():
        print(f"{name}: {NUMBER / median:,.0f}/s in batches of {BATCH}")
    for name in medians.keys() - {OURS}:
        print(f"capture / {name}: {medians[name] / medians[OURS]:.2f}")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        main(Path(sys.argv[1]).resolve() if sys.argv[1:] else None)
