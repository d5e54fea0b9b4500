"""Elsewhere than on Linux, the SDK says what it is that is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SDK = Path(__file__).parents[2] / "sdk"


def on(platform: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run a program that takes its machine for another, without what Linux has."""
    disguise = (
        "import sys, asyncio, urllib3, sqlite3; "
        f"sys.platform = {platform!r}; sys.modules['fcntl'] = None; "
    )
    return subprocess.run(
        [sys.executable, "-c", disguise + code],
        env={"PYTHONPATH": str(SDK)},
        capture_output=True,
        check=False,
        text=True,
    )


@pytest.mark.parametrize("platform", ["darwin", "win32"])
@pytest.mark.parametrize("name", ["Guard", "Journal"])
def test_a_guard_elsewhere_is_refused_with_the_reason(platform: str, name: str) -> None:
    ended = on(platform, f"from poisonguard import {name}")

    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: poisonguard guards consumers on Linux only")
    assert platform in last


def test_the_wire_works_everywhere() -> None:
    ended = on("darwin", "import poisonguard.contract, poisonguard.fingerprint")

    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_readme_says_so_on_its_first_line() -> None:
    first = (SDK / "README.md").read_text().split("\n\n")[1]

    assert "Linux only" in first.splitlines()[0]
