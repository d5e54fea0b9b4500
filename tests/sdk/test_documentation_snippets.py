"""The first snippet of a page of documentation runs as it is printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands

from poisonguard.contract import parse_failure
from poisonguard.server import http_client
from tests.sdk.fake_poisonweb_server import FakeServer

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "sdk/README.md", *sorted(ROOT.glob("docs/**/*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOW = int(time.time() * 1_000)  # entry ids say when, and what is old expires
GOOD, BAD = f"{NOW}-0", f"{NOW}-1"
STREAM = [(GOOD, {"body": b"good"}), (BAD, {"body": b"bad"})]


def snippets(page: Path) -> list[tuple[str, str]]:
    """Give the language and the text of each."""
    return FENCED.findall(page.read_text())


FIRST = {
    str(page.relative_to(ROOT)): snippets(page)[0] for page in PAGES if snippets(page)
}


@pytest.fixture
def online(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], FakeServer]:
    """Let a printed url lead to the double, which takes the printed key."""
    monkeypatch.setenv("POISONGUARD_JOURNAL", str(tmp_path / "journal"))
    usable = http_client._checked_url

    def lead(key: str) -> FakeServer:
        server.key = key
        monkeypatch.setattr(
            http_client, "_checked_url", lambda url: usable(url) and server.url
        )
        return server

    return lead


def handler(entry: tuple[str, dict[str, bytes]]) -> None:
    if entry[1]["body"] == b"bad":
        # One that is fatal in each snippet that names fatal ones, or is soon given up.
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")


class Redis:
    """What the snippet wants of a client."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[str, ...]] = []

    def xack(self, *names: str) -> None:
        self.acknowledged.append(names)


def test_every_page_whose_first_snippet_is_a_program_is_run_here() -> None:
    kinds = {page: language for page, (language, _) in FIRST.items()}

    assert kinds == {
        "README.md": "",  # a drawing
        "sdk/README.md": "sh",
        "docs/metrics-and-alerts.md": "sh",
        "docs/brokers/amazon-sqs.md": "",  # a command
        "docs/connect-a-consumer.md": "python",
        "docs/operators.md": "sh",
        "docs/outbox.md": "python",  # see test_programs_in_outbox_docs.py
        "docs/outbox-sweeper.md": "",  # a command
        "docs/protocol.md": "",  # a request
        "docs/resource-lock.md": "python",  # see contracts/test_postgres_locks.py
    }


def test_the_first_program_of_the_sdks_readme_runs(
    online: Callable[[str], FakeServer],
) -> None:
    server, settled = online("pw_..."), list[object]()
    names: dict[str, Any] = {
        "client": STREAM,
        "handler": handler,
        "settle": settled.append,
    }
    program = next(
        text for kind, text in snippets(ROOT / "sdk/README.md") if kind == "python"
    )

    exec(compile(program, "sdk/README.md", "exec"), names)

    assert settled == STREAM
    assert [f["bookmark"] for f in server.reports.failures.values()] == [BAD]


def test_the_other_programs_of_the_sdks_readme_compile() -> None:
    programs = [t for kind, t in snippets(ROOT / "sdk/README.md") if kind == "python"]

    for program in programs:
        compile(f"async def main():\n{re.sub('(?m)^', ' ', program)}", "README", "exec")
    assert len(programs) >= 4


def test_the_reader_of_the_sdks_readme_reads() -> None:
    names: dict[str, Any] = {}
    text = next(t for _, t in snippets(ROOT / "sdk/README.md") if "(Reader):" in t)

    exec(compile(text, "sdk/README.md", "exec"), names)

    assert names["NatsReader"]().replays


def test_the_first_program_of_the_page_for_consumers_runs(
    online: Callable[[str], FakeServer],
) -> None:
    server, redis = online("pw_of_ours"), Redis()
    names: dict[str, Any] = {
        "key": "pw_of_ours",
        "entries": STREAM,
        "handler": handler,
        "redis": redis,
    }

    exec(
        compile(
            FIRST["docs/connect-a-consumer.md"][1], "connect-a-consumer.md", "exec"
        ),
        names,
    )

    assert redis.acknowledged == [("orders", "billing", n) for n in (GOOD, BAD)]
    assert [f["bookmark"] for f in server.reports.failures.values()] == [BAD]


def test_the_first_request_of_the_protocol_is_one() -> None:
    first, _, body = FIRST["docs/protocol.md"][1].partition("\n")

    (report,) = json.loads(body)["failures"]

    assert first == "POST /api/v1/failures"
    assert parse_failure(report).topic == "orders"


@pytest.mark.parametrize(
    ("page", "number"),
    [
        ("docs/metrics-and-alerts.md", 1),
        ("docs/operators.md", 2),
        ("docs/brokers/amazon-sqs.md", 1),
    ],
)
def test_what_the_first_commands_of_a_page_name_is_there(
    page: str, number: int
) -> None:
    words = shlex.split(FIRST[page][1], comments=True)
    commands = [words[n + 1] for n, word in enumerate(words) if word == "manage.py"]
    files = [word for word in words if word.endswith(".txt")]

    assert len(commands) + len(files) == number
    assert set(commands) <= set(get_commands())
    assert all((ROOT / name).is_file() for name in files)


def test_what_the_sdks_readme_installs_is_there() -> None:
    command, extra = re.findall(r"\./sdk(?:\[(\w+)\])?", FIRST["sdk/README.md"][1])
    project = tomllib.loads((ROOT / "sdk/pyproject.toml").read_text())["project"]

    assert (command, project["name"]) == ("", "poisonguard")
    assert extra in project["optional-dependencies"]


def test_the_table_of_readers_names_what_is_there() -> None:
    text = (ROOT / "sdk/README.md").read_text()
    table = text.partition("| client | reader")[2].partition("\n\n")[0]
    readers = re.findall(r"`(\w+)\.(\w+Reader)`", table)
    extras = re.findall(r"Reader` \| `([\w-]+)` \|", table)
    files = re.findall(r"\(examples/(\w+\.py)\)", table)
    project = tomllib.loads((ROOT / "sdk/pyproject.toml").read_text())["project"]

    assert len(readers) == 9
    for module, name in readers:
        assert hasattr(import_module(f"poisonguard.readers.{module}"), name)
    # These are for a window and for locks: `poisonguard.dedupe`, `poisonguard.locks`.
    assert sorted([*extras, "postgres", "zookeeper"]) == sorted(
        project["optional-dependencies"]
    )
    examples = (ROOT / "sdk/examples").glob("*.py")
    assert sorted(files) == sorted(file.name for file in examples)


def test_the_tests_of_the_sdks_readme_pass_as_they_are_printed(tmp_path: Path) -> None:
    program = next(
        t for _, t in snippets(ROOT / "sdk/README.md") if "FakePoisonweb" in t
    )
    (tmp_path / "test_readme.py").write_text(program)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-c", "/dev/null"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "sdk")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
