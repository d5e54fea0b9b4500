"""The suite in its parts, as `make test` runs it: `python -m tests.parts [quick]`.

The quick tests and the slow ones wait for different things: side by side they keep the
processors busy. What measures seconds comes after them, alone.

Ends with 0 where all passed; with 3 where all passed that could run, and others could
not (see `tests.needs`; for the quick part alone that is no fault); with 1 where one
failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tests.needs import UNMET

SLOW = "acceptance or browser or spark"
# Beside these nothing may run that takes a processor for itself.
TIMED = [
    f"tests/acceptance/test_{name}.py" for name in ("hung_redis", "kills", "sample")
]
PROCESSORS = os.cpu_count() or 1
LACKING = 3


def pytest(*arguments: str, workers: int) -> list[str]:
    return [
        *(sys.executable, "-m", "pytest", "--numprocesses", str(workers)),
        *("--dist", "loadgroup", "--no-loadscope-reorder", *arguments),
    ]


def quick(workers: int) -> list[str]:
    return pytest("-m", f"not ({SLOW})", workers=workers)


def slow() -> list[str]:
    others = [f"--ignore={path}" for path in TIMED]
    return pytest("-m", SLOW, "--durations", "15", *others, workers=PROCESSORS)


def side_by_side(first: Sequence[str], second: Sequence[str]) -> list[int]:
    """Run both, show the first as it goes and the second at its end."""
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(second, stdout=said, stderr=said) as other:
            codes = [subprocess.call(first)]
        said.seek(0)
        sys.stdout.buffer.write(said.read())
        sys.stdout.flush()
    return [*codes, other.returncode]


def verdict(codes: Sequence[int]) -> int:
    if set(codes) <= {0, UNMET}:
        return LACKING if UNMET in codes else 0
    return 1


def main(words: Sequence[str]) -> int:
    if list(words) == ["quick"]:
        # They often wait for processes of their own: there is room for more.
        return 1 if verdict([subprocess.call(quick(2 * PROCESSORS))]) == 1 else 0
    codes = side_by_side(quick(PROCESSORS + 1), slow())
    if verdict(codes) != 1:
        codes.append(subprocess.call(pytest(*TIMED, workers=PROCESSORS)))
    return verdict(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
