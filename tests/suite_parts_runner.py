"""The suite in its parts, as `make test` runs it.

`python -m tests.suite_parts_runner [PART ...]` runs these parts, or else all of them.

Each part runs to its end, whatever became of those before it; a part that hangs is
stopped when its time is over, which is a failure of that part. So is a process or a
temporary file that a part leaves behind; it is removed.

Ends with 0 where all passed; with 3 where all passed that could run, and others could
not (see `tests.machine_requirements`; for the quick part alone that is no fault); with
1 where a part failed; with 128 and the number of the signal that stopped it.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import random_seed_plugin, run_without_leftovers, shifted_clock
from tests.machine_requirements import UNMET
from tests.run_without_leftovers import CommandOutcome, Interrupted

SLOW = ("tests/acceptance", "tests/browser", "tests/spark")
PROCESSORS = os.cpu_count() or 1
FAILED, LACKING = 1, 3
ALONE = ".venv/bin/python -m tests.suite_parts_runner"
# A part that takes longer hangs: each single test has a limit of its own.
SECONDS = 45 * 60
OUT_OF_TIME = 128 + signal.SIGALRM


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What became of a part; `repeats` are the lines that repeat its failures."""

    part: str
    outcome: CommandOutcome
    seconds: float
    repeats: str

    @property
    def code(self) -> int:
        if self.outcome.leftovers or self.outcome.code not in {0, UNMET}:
            return FAILED
        return LACKING if self.outcome.code == UNMET else 0


def check(_: int) -> list[str]:
    jobs = ("--keep-going", f"--jobs={PROCESSORS}", "--output-sync=target")
    return ["make", "--no-print-directory", *jobs, "check"]


def quick(number: int) -> list[str]:
    # They often wait for processes of their own: there is room for more.
    others = (f"--ignore={folder}" for folder in SLOW)
    return _pytest(number, *others, workers=3 * PROCESSORS)


def slow(number: int) -> list[str]:
    # Some of them wait for what the sample does by the minute.
    return _pytest(number, *SLOW, "--durations", "15", workers=PROCESSORS + 1)


def _pytest(number: int, *arguments: str, workers: int) -> list[str]:
    return [
        *(sys.executable, "-m", "pytest", "--seed", str(number)),
        *("--numprocesses", str(workers)),
        *("--dist", "loadgroup", "--no-loadscope-reorder", *arguments),
    ]


PARTS = {"check": check, "quick": quick, "slow": slow}


def commands(names: Sequence[str], *, number: int, start: str) -> dict[str, list[str]]:
    """Give the command of each part; the tests of each begin at the clock `start`."""
    words = {name: PARTS[name](number) for name in names}
    if start:
        tests = words.keys() - {"check"}
        # The time is set when the part begins, which is after those before it.
        at = (sys.executable, "-m", shifted_clock.__name__, start)
        words |= {name: [*at, *words[name]] for name in tests}
    return words


def run(commands: Mapping[str, Sequence[str]], *, start: str = "") -> list[Result]:
    """Run all parts of the test suite, one after the other."""
    return [
        _run(name, words, {random_seed_plugin.CLOCK: start})
        for name, words in commands.items()
    ]


def _run(name: str, words: Sequence[str], environment: Mapping[str, str]) -> Result:
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("r", prefix="poisonweb-failures-") as failures:
        ours = {
            random_seed_plugin.PART: name,
            random_seed_plugin.FAILURES: failures.name,
            **environment,
        }
        environment = {**_without_make(), **ours}
        outcome = _outcome(words, environment)
        repeats = Path(failures.name).read_text()
    return Result(
        part=name,
        outcome=outcome,
        seconds=time.monotonic() - began,
        repeats=repeats,
    )


def _outcome(words: Sequence[str], environment: Mapping[str, str]) -> CommandOutcome:
    try:
        return run_without_leftovers.run(
            words, environment=environment, seconds=SECONDS
        )
    except Interrupted as interrupted:
        if interrupted.signal != signal.SIGALRM:
            raise
        # It hung: that is its own failure, and the parts after it run.
        return CommandOutcome(code=OUT_OF_TIME, leftovers=())


def _without_make() -> dict[str, str]:
    """Give our environment without what a make tells a make that it starts."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MAKE", "MFLAGS"))
    }


def report(results: Sequence[Result], *, number: int, start: str = "") -> int:
    """Print on stderr how the suite's parts ended; return the worst exit code."""
    worst = max((result.code for result in results), key=(0, LACKING, FAILED).index)
    for result in results:
        _say(_line(result, number))
        for leftover in result.outcome.leftovers:
            _say(f"  left behind by {result.part}: {leftover}")
        for line in result.repeats.splitlines():
            _say(f"  {line}")
        if result.code == FAILED:
            # A run that did not come as far as its tests names none of them.
            _say(f"  run it alone with: {alone(result.part, number, start)}")
    return worst


def alone(part: str, number: int, start: str) -> str:
    """Return the command that runs one part of the suite as it ran."""
    begin = f" --clock {shlex.quote(start)}" if start else ""
    return f"{ALONE} {part} --seed {number}{begin}"


def _line(result: Result, number: int) -> str:
    said = {0: "passed", LACKING: "passed, but not all could run"}
    how = said.get(result.code, f"FAILED with exit code {result.outcome.code}")
    if result.outcome.code == OUT_OF_TIME:
        how = f"FAILED: it did not end within {SECONDS:,} s"
    return f"part {result.part}: {how}, {result.seconds:.0f} s, seed {number}"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tests.suite_parts_runner", description=__doc__
    )
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--clock", default="", help="begin each part at this UTC time")
    options = parser.parse_args(words)
    names = options.parts or list(PARTS)
    try:
        asked_for = commands(names, number=options.seed, start=options.clock)
        results = run(asked_for, start=options.clock)
    except Interrupted as stopped:
        _say(f"tests: stopped by {stopped}, seed {options.seed}")
        return 128 + stopped.signal
    code = report(results, number=options.seed, start=options.clock)
    return 0 if names == ["quick"] and code == LACKING else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
