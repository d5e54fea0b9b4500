"""A program of ours ends at once, whatever it holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOLDS_A_CYCLE = """
import poisonweb

class Held:
    def __init__(self):
        self.held = self

    def __del__(self):
        print("found")

held = Held()
"""


def test_what_it_holds_is_not_searched_for_cycles() -> None:
    command = (sys.executable, "-c", HOLDS_A_CYCLE)

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == ""
