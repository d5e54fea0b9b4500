"""Unmet needs of the tests are reported; tests that share a server share a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import machine_requirements
from tests.brokers import install_broker_servers
from tests.machine_requirements import UNMET

ROOT = Path(__file__).resolve().parents[2]
NEEDS = """
from tests import xdist_schedule_plugin
from tests.machine_requirements import NEEDS, Need

NEEDS["here"] = Need(remedy=lambda: "", get=lambda: None)
NEEDS["gone"] = Need(remedy=lambda: "apt-get install it", get=lambda: None)
xdist_schedule_plugin.SERVERS = ("here",)
"""
TESTS = """
import pathlib, pytest

@pytest.fixture
def server():
    raise AssertionError("it was started, and is not there")

@pytest.mark.needs("here")
@pytest.mark.parametrize("number", range(6))
def test_here(number, worker_id):
    pathlib.Path(f"ran {worker_id} {number}").touch()

@pytest.mark.parametrize("number", range(6))
def test_alone(number):
    pass
"""
LACKING = """
@pytest.mark.needs("gone")
def test_gone(server):
    pass
"""


def run(folder: Path, tests: str, *arguments: str, **changes: str) -> tuple[int, str]:
    """Run tests as ours are run, with these two plugins."""
    (folder / "conftest.py").write_text(NEEDS)
    (folder / "test_it.py").write_text(tests)
    plugins = (
        "-p",
        "tests.machine_requirements",
        "-p",
        "tests.xdist_schedule_plugin",
        "--rootdir",
        str(folder),
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT}/sdk"}
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", *plugins, *arguments, "test_it.py"),
        cwd=folder,
        env={**environment, **changes},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_tests_that_need_the_same_server_share_a_worker(tmp_path: Path) -> None:
    code, said = run(tmp_path, TESTS, "-n", "2", "--dist", "loadgroup")

    workers = {path.name.split()[1] for path in tmp_path.glob("ran *")}
    assert code == 0, said
    assert len(list(tmp_path.glob("ran *"))) == 6
    assert len(workers) == 1


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_did_not_run_is_listed_and_has_an_exit_code_of_its_own(
    tmp_path: Path, workers: str
) -> None:
    code, said = run(tmp_path, TESTS + LACKING, "-n", workers)

    assert code == UNMET, said
    assert "DID NOT RUN: 1 of test_it.py, needs gone: apt-get install it" in said
    assert "12 passed, 1 skipped" in said


def test_a_failure_is_a_failure_whatever_did_not_run(tmp_path: Path) -> None:
    code, _ = run(tmp_path, f"{TESTS}{LACKING}\ndef test_bad():\n    assert 0\n")

    assert code == 1


def test_in_ci_a_machine_that_lacks_something_fails(tmp_path: Path) -> None:
    code, said = run(tmp_path, TESTS + LACKING, CI="true")

    assert code == 1
    assert "needs gone, also in CI: apt-get install it" in said


def test_no_service_is_started_while_packages_are_installed(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"

    with install_broker_servers.starting_nothing(policy):
        code = subprocess.run((policy, "rabbitmq-server", "start"), check=False)

    assert code.returncode == 101
    assert not policy.exists()


def test_a_policy_that_was_there_stays(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("theirs")

    with install_broker_servers.starting_nothing(policy):
        pass

    assert policy.read_text() == "theirs"


def test_a_python_is_found_where_it_is_and_can_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit, fit = tmp_path / "bin" / "python3.99", tmp_path / ".pyenv/versions/3.99.1"
    for place, version in ((unfit, ""), (fit / "bin" / "python3", "3.99")):
        place.parent.mkdir(parents=True)
        place.write_text(f"#!/bin/sh\necho {version}\n")
        place.chmod(0o755)
    monkeypatch.setenv("PATH", str(unfit.parent), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert machine_requirements.python("3.99") == str(fit / "bin" / "python3")
    assert machine_requirements.python("3.98") is None


def test_a_python_that_is_missing_is_for_people_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine_requirements, "python", lambda _: None)

    code = machine_requirements.main(["python3.12"])

    assert code == 0
    assert capsys.readouterr().err == (
        "poisonweb: some tests will not run without python3.12: "
        "apt-get install python3.12-venv, or pyenv install 3.12\n"
    )
