"""Each part of the suite runs, and what failed says how to repeat it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests import suite_parts_runner
from tests.machine_requirements import UNMET
from tests.random_seed_plugin import PYTEST
from tests.run_without_leftovers import CommandOutcome
from tests.suite_parts_runner import FAILED, LACKING, Result

ROOT = Path(__file__).resolve().parents[2]
PYTHONPATH = f"PYTHONPATH={ROOT}:{ROOT}/sdk"
RUN = """
import json, sys
from tests import suite_parts_runner
commands = json.loads(sys.argv[1])
suite_parts_runner.SECONDS = int(sys.argv[2])
sys.exit(suite_parts_runner.report(suite_parts_runner.run(commands), number=7))
"""
TESTS = """
import random, pathlib, pytest, time
from hypothesis import given, strategies, settings

def note(name, value):
    with pathlib.Path(name).open("a") as file:
        file.write(f"{value}\\n")

@pytest.mark.parametrize("text", ["it's", "a@b"])
def test_draws(text):
    note("drawn " + text, random.random())
    assert False

@settings(database=None, max_examples=5)
@given(strategies.integers())
def test_examples(number):
    note("examples", number)

@pytest.mark.parametrize("place", range(20))
def test_order(place):
    note("order", place)
"""


def run(
    commands: Mapping[str, Sequence[str]], *, seconds: int = 600
) -> tuple[int, str]:
    words = (sys.executable, "-c", RUN, json.dumps(commands), str(seconds))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_a_part_that_fails_does_not_keep_the_others_from_running(
    tmp_path: Path,
) -> None:
    commands = {
        "one": ["sh", "-c", "exit 2"],
        "two": ["touch", str(tmp_path / "ran")],
        "three": ["sh", "-c", f"exit {UNMET}"],
    }

    code, said = run(commands)

    assert code == FAILED
    assert (tmp_path / "ran").exists()
    assert re.findall(r"^part (\w+: .+), \d+ s, seed 7$", said, re.MULTILINE) == [
        "one: FAILED with exit code 2",
        "two: passed",
        "three: passed, but not all could run",
    ]


def test_a_part_that_hangs_fails_by_name_and_the_next_part_runs(
    tmp_path: Path,
) -> None:
    commands = {
        "one": ["sleep", "600"],
        "two": ["touch", str(tmp_path / "ran")],
    }

    code, said = run(commands, seconds=5)

    assert code == FAILED
    assert (tmp_path / "ran").exists()
    assert re.findall(r"^part (\w+: .+), \d+ s, seed 7$", said, re.MULTILINE) == [
        "one: FAILED: it did not end within 5 s",
        "two: passed",
    ]
    assert f"run it alone with: {suite_parts_runner.ALONE} one --seed 7" in said


def result(*, code: int, leftovers: tuple[str, ...] = ()) -> Result:
    outcome = CommandOutcome(code=code, leftovers=leftovers)
    return Result(part="one", outcome=outcome, seconds=1.0, repeats="")


@pytest.mark.parametrize(
    ("results", "worst"),
    [
        ([result(code=0)], 0),
        ([result(code=UNMET), result(code=0)], LACKING),
        ([result(code=0), result(code=1), result(code=UNMET)], FAILED),
        ([result(code=-9), result(code=0)], FAILED),
        ([result(code=0, leftovers=("process 1: sleep",))], FAILED),
    ],
)
def test_the_worst_part_gives_the_exit_code(results: list[Result], worst: int) -> None:
    assert suite_parts_runner.report(results, number=1) == worst


def test_a_part_that_failed_says_how_to_run_it_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    suite_parts_runner.report([result(code=4)], number=7, start="2030-12-31 23:57")
    suite_parts_runner.report([result(code=UNMET)], number=7)

    said = capsys.readouterr().err
    command = f"{suite_parts_runner.ALONE} one --seed 7 --clock '2030-12-31 23:57'"
    assert re.findall("^  run it alone with: (.+)$", said, re.MULTILINE) == [command]


BROKEN_FIXTURES = """
import pytest

@pytest.fixture
def beginning():
    raise OSError("it did not begin")

@pytest.fixture
def ending():
    yield
    raise OSError("it did not end")

def test_begins(beginning):
    pass

def test_ends(ending):
    pass
"""


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(
    ("text", "causes"),
    [
        (
            BROKEN_FIXTURES,
            {
                "test_it.py::test_begins": "OSError: it did not begin",
                "test_it.py::test_ends": "OSError: it did not end",
            },
        ),
        ("import nowhere", {"test_it.py": "No module named 'nowhere'"}),
    ],
    ids=["fixtures", "file"],
)
def test_a_part_says_how_to_repeat_a_broken_fixture_or_file_alone(
    tmp_path: Path, workers: str, text: str, causes: Mapping[str, str]
) -> None:
    (tmp_path / "test_it.py").write_text(text)
    tests = pytest_in(tmp_path, "--seed", "7", "-n", workers)

    code, said = run({"one": ["env", f"--chdir={tmp_path}", PYTHONPATH, *tests]})

    assert code == FAILED
    for test, cause in causes.items():
        repeat = f'  part "one", seed 7: repeat with: {PYTEST} {test} --seed 7\n'
        assert repeat in said
        assert cause in said.partition(repeat)[2].partition("\n")[0]


def pytest_in(folder: Path, *arguments: str) -> list[str]:
    plugins = (
        "-p",
        "tests.xdist_schedule_plugin",
        "-p",
        "tests.random_seed_plugin",
        "--rootdir",
        str(folder),
    )
    return [sys.executable, "-m", "pytest", "-q", *plugins, *arguments]


def run_tests(folder: Path, *arguments: str) -> str:
    """Run tests in a process of their own with our seed, and tell its output."""
    done = subprocess.run(
        pytest_in(folder, *arguments),
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT}/sdk"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def noted(folder: Path) -> dict[str, list[str]]:
    """Give what tests noted, and forget it."""
    files = [path for path in folder.iterdir() if path.suffix == "" and path.is_file()]
    lines_by_file = {path.name: path.read_text().splitlines() for path in files}
    for path in files:
        path.unlink()
    return lines_by_file


def test_a_seed_repeats_order_and_draws_and_another_does_not(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)

    def ran(seed: str) -> dict[str, list[str]]:
        run_tests(tmp_path, "--seed", seed, "test_it.py")
        return noted(tmp_path)

    first, again, other = ran("1"), ran("1"), ran("2")

    assert first.keys() == {"drawn it's", "drawn a@b", "examples", "order"}
    assert first == again
    assert all(first[name] != other[name] for name in first)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_failure_says_the_line_that_repeats_it_alone(
    tmp_path: Path, workers: str
) -> None:
    together = "import pytest\npytestmark = pytest.mark.together\n"
    (tmp_path / "conftest.py").write_text(
        "def pytest_configure(config):\n"
        "    config.addinivalue_line('markers', 'together: one worker')\n"
    )
    (tmp_path / "test_it.py").write_text(together + TESTS)
    spread = ("-n", workers, "--dist", "loadgroup") if workers != "0" else ()

    said = run_tests(tmp_path, *spread, "--seed", "5", "test_it.py")

    drawn = noted(tmp_path)
    lines = re.findall(r"^seed 5: repeat with: (.+)$", said, re.MULTILINE)
    assert len(lines) == 2
    cause = r"^  .+test_it.py:\d+: assert False$"
    assert len(re.findall(cause, said, re.MULTILINE)) == 2
    for line in lines:
        python, _, pytest, *arguments = shlex.split(line)
        assert (python, pytest) == (".venv/bin/python", "pytest")
        run_tests(tmp_path, *arguments)
    again = noted(tmp_path)
    assert again == {name: drawn[name] for name in ("drawn it's", "drawn a@b")}


def test_each_test_has_a_limit_of_time(pytestconfig: pytest.Config) -> None:
    assert float(pytestconfig.getini("timeout")) > 0
    assert pytestconfig.getini("faulthandler_exit_on_timeout")


def test_the_clock_is_set_when_each_part_begins() -> None:
    start = "2030-12-31 23:57"

    commands = suite_parts_runner.commands(
        ["check", "quick", "slow"], number=7, start=start
    )

    for name in ("quick", "slow"):
        begin = [
            sys.executable,
            "-m",
            "tests.shifted_clock",
            start,
            sys.executable,
            "-m",
            "pytest",
        ]
        assert commands[name][: len(begin)] == begin
    assert commands["check"] == suite_parts_runner.check(7)
