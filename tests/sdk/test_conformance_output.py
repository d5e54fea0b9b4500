"""The conformance script by itself: what it asks, and how it tells what it found."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from poisonguard import __main__
from poisonguard_conformance.check_server_command import CHECKS, NAMES, main
from poisonweb.embedded.free_ports import free_port
from tests.sdk.fake_poisonweb_server import KEY, FakeServer

ROOT = Path(__file__).resolve().parents[2]
SDK = ROOT / "sdk"
PROTOCOL = ROOT / "docs" / "protocol.md"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    return file


def play(url: str, key_file: Path, *arguments: str) -> int:
    connection_arguments = ("--url", url, "--api-key-file", str(key_file))
    return main([*connection_arguments, *arguments])


def test_the_protocol_lists_every_check_and_what_it_says() -> None:
    _, _, checks = PROTOCOL.read_text().partition("## The checks")

    listed = re.findall("^\\| `(.+?)` \\| (.+) \\|$", checks, re.MULTILINE)

    assert listed == [(check.name, check.says) for check in CHECKS]


def test_a_failed_check_quotes_the_protocol(
    server: FakeServer, key_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.rewords = lambda result: {**result, "status": "created"}

    status = play(server.url, key_file, "--only", "unknown-members", "failure-rejected")

    first, second, protocol, *_, last = capsys.readouterr().out.splitlines()
    assert status == 1
    assert re.fullmatch(r"failed +failure-rejected: .+", first)
    assert second.strip().startswith("the protocol says: A bad member is `rejected`")
    assert re.fullmatch(r"ok +unknown-members", protocol)
    assert last.startswith("1 ok, 1 failed, 0 not checked. Left behind: ")


def test_json_output_is_one_object(
    server: FakeServer, key_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = play(server.url, key_file, "--json", "--only", "unknown-members")

    report = json.loads(capsys.readouterr().out)
    [verdict] = report["checks"]
    assert (status, verdict["name"], verdict["result"]) == (0, "unknown-members", "ok")
    assert "conformance-orders" in report["left_behind"]


def test_an_unreachable_server_fails_once_and_the_rest_is_not_checked(
    key_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # It stays reserved: no server of another test may get it.
    status = play(f"http://127.0.0.1:{free_port()}", key_file, "--json")

    results = [each["result"] for each in json.loads(capsys.readouterr().out)["checks"]]
    assert status == 1
    assert results == ["failed", *["not checked"] * (len(NAMES) - 1)]


def test_a_server_that_breaks_off_fails_that_check_only(
    server: FakeServer, key_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.faults.lose_answers(1)

    status = play(
        server.url,
        key_file,
        "--json",
        "--only",
        "unknown-members",
        "confirmation-forged",
    )

    checks = json.loads(capsys.readouterr().out)["checks"]
    assert status == 1
    assert "got no answer" in checks[0]["detail"]
    assert "got no answer" not in checks[1]["detail"]


def test_the_topics_begin_with_the_given_prefix(
    server: FakeServer, key_file: Path
) -> None:
    play(server.url, key_file, "--topic-prefix", "ours", "--only", "unknown-members")

    [report] = server.reports.failures.values()
    assert report["topic"] == "ours-orders"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--url", "poison.example.com", "--api-key-file", "{key}"),
        ("--url", "http://127.0.0.1:1", "--api-key-file", "{key}-nowhere"),
        ("--url", "http://127.0.0.1:1", "--api-key-file", "{key}", "--only", "nothing"),
    ],
)
def test_unusable_arguments_are_refused_in_one_line(
    key_file: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    options = [argument.format(key=key_file) for argument in arguments]

    with pytest.raises(SystemExit) as ended:
        main([*options])

    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


def test_its_former_command_runs_it_where_it_is_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "poisonguard", "conformance", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": f"{SDK}:{SDK / 'conformance'}"},
    )

    assert done.stdout.startswith("usage: python -m poisonguard_conformance ")


def test_its_former_command_names_its_package_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(__main__, "CONFORMANCE", "installed_nowhere")

    with pytest.raises(SystemExit, match="install poisonguard-conformance"):
        __main__.run_conformance()
