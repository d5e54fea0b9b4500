"""The suite in its parts, as `make test` runs it: `python -m tests.parts [quick]`.

First the quick tests, then those that start the whole product, a browser or Spark.

Ends with 0 where all passed; with 3 where all passed that could run, and others could
not (see `tests.needs`; for the quick part alone that is no fault); else as pytest does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from tests.needs import UNMET

SLOW = ("tests/acceptance", "tests/browser", "tests/spark")
PROCESSORS = os.cpu_count() or 1
LACKING = 3


def pytest(*arguments: str, workers: int) -> list[str]:
    return [
        *(sys.executable, "-m", "pytest", "--numprocesses", str(workers)),
        *("--dist", "loadgroup", "--no-loadscope-reorder", *arguments),
    ]


def quick() -> list[str]:
    # They often wait for processes of their own: there is room for more.
    others = (f"--ignore={folder}" for folder in SLOW)
    return pytest(*others, workers=3 * PROCESSORS)


def slow() -> list[str]:
    # Some of them wait for what the sample does by the minute.
    return pytest(*SLOW, "--durations", "15", workers=PROCESSORS + 1)


def run(parts: Sequence[Sequence[str]]) -> int:
    """Run these one after the other until one fails; give pytest's worst code."""
    worst = 0
    for part in parts:
        code = subprocess.call(part)
        if code not in {0, UNMET}:
            return code
        worst = max(worst, code)
    return worst


def main(words: Sequence[str]) -> int:
    if list(words) == ["quick"]:
        code = run([quick()])
        return 0 if code == UNMET else code
    code = run([quick(), slow()])
    return LACKING if code == UNMET else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
