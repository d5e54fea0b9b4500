"""What a test starts dials no other machine either."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.no_network import FOLDER
from tests.no_network.sitecustomize import is_installing

ROOT = Path(__file__).resolve().parents[2]
TRY = """
import socket, sys
try:
    {code}
except OSError as error:
    print(type(error).__name__, error.errno)
else:
    print("done")
"""
DIAL = "socket.socket().connect(({!r}, 9))"
SEND = "socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ({!r}, 9))"
ASK = "socket.getaddrinfo({!r}, 80)"


def said(code: str, *before: str, env: dict[str, str] | None = None) -> str:
    command = [sys.executable, *before, "-c", TRY.format(code=code)]
    return subprocess.check_output(command, text=True, cwd=ROOT, env=env).strip()


@pytest.mark.parametrize("code", [DIAL, SEND])
@pytest.mark.parametrize("address", ["203.0.113.7", "169.254.169.254", "10.0.0.1"])
def test_another_machine_is_not_dialled(code: str, address: str) -> None:
    assert said(code.format(address)) == "PermissionError 13"


@pytest.mark.parametrize("name", ["mq.example", "a.b"])
def test_no_name_of_another_machine_is_asked_for(name: str) -> None:
    assert said(ASK.format(name)) == "gaierror -2"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "203.0.113.7", "::1", None])
def test_what_needs_no_other_machine_is_resolved(host: str | None) -> None:
    assert said(ASK.format(host)) == "done"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machine_is_dialled(host: str) -> None:
    accepting = "socket.create_connection(({!r}, at.getsockname()[1])).close()"
    code = "at = socket.create_server(('127.0.0.1', 0)); " + accepting.format(host)

    assert said(code) == "done"


def test_what_a_started_program_starts_is_held_to_it_too() -> None:
    inner = TRY.format(code=DIAL.format("203.0.113.7"))
    code = f"import subprocess; subprocess.run([sys.executable, '-c', {inner!r}])"

    assert said(code).split()[0] == "PermissionError"


@pytest.mark.parametrize(
    ("words", "installs"),
    [
        (["python", "-m", "pip", "install", "x"], True),
        (["python", "/venv/bin/pip", "install", "x"], True),
        (["python", "/x/site-packages/pip/__pip-runner__.py", "install"], True),
        (["python", "-m", "poisonweb.web"], False),
        (["python", "manage.py", "lanes"], False),
    ],
)
def test_pip_alone_reaches_the_package_index(words: list[str], installs: bool) -> None:
    assert is_installing(words) is installs


def test_every_process_of_these_tests_hands_it_on() -> None:
    code = f"print({FOLDER!r} in sys.path)"

    assert said(code).split()[0] == "True"
