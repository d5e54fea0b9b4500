"""A pytest plugin: one seed for all chance in a run, and lines that repeat failures.

The seed gives the order of the tests, what `random` draws in each of them, and the
examples of Hypothesis. `--seed` sets it; each run prints it.
"""

from __future__ import annotations

import os
import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

# Set by `tests.suite_parts_runner`: the name of the part, the file that gathers the
# lines of its failures, and what a command has to begin with to see the same clock.
PART, FAILURES, CLOCK = "TESTS_PART", "TESTS_FAILURES", "TESTS_CLOCK"
PYTEST = ".venv/bin/python -m pytest"
CAUSE = 600  # characters of what failed, at most


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="repeat the run that printed this seed")


@pytest.hookimpl(tryfirst=True)  # before those who read what is set here
def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    if option.seed is None:
        option.seed = random.SystemRandom().randrange(2**32)
    option.randomly_seed = option.seed
    option.hypothesis_seed = str(option.seed)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed {config.option.seed}, which --seed repeats"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = list(_lines(terminalreporter, config.option.seed))
    if lines:
        terminalreporter.section("to repeat each failure alone")
        terminalreporter.write("\n".join([*lines, ""]))
    if FAILURES in os.environ:
        with Path(os.environ[FAILURES]).open("a") as file:
            file.writelines(f"{line}\n" for line in lines)


def _lines(reporter: pytest.TerminalReporter, seed: int) -> Iterator[str]:
    part = os.environ.get(PART, "")
    where = f'part "{part}", ' if part else ""
    reports = [*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())]
    for report in {report.nodeid: report for report in reversed(reports)}.values():
        yield f"{where}seed {seed}: repeat with: {repeat(report.nodeid, seed)}"
        yield f"  {cause(report)}"


def cause(report: object) -> str:
    """Return the place and the first words of a test's failure."""
    crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
    if crash is None:
        return " ".join(str(getattr(report, "longrepr", "")).split())[-CAUSE:]
    return f"{crash.path}:{crash.lineno}: {' '.join(crash.message.split())[:CAUSE]}"


def repeat(test: str, seed: int) -> str:
    """Return the command that runs one test as it ran."""
    clock = os.environ.get(CLOCK, "")
    begin = (
        f".venv/bin/python -m tests.shifted_clock {shlex.quote(clock)} "
        if clock
        else ""
    )
    # Where a worker died, xdist names the test by its group, too.
    name = re.sub(r"@\w+$", "", test)
    return f"{begin}{PYTEST} {shlex.quote(name)} --seed {seed}"
