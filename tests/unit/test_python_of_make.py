"""Which Python `make` chooses for `.venv`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHOW = "--eval=show: ; @printf '%s' $(PYTHON)"


def choose(*pythons: Path | str) -> subprocess.CompletedProcess[str]:
    """Let make choose between these, or as it does."""
    among = [f"PYTHONS={' '.join(map(str, pythons))}"] if pythons else []
    return subprocess.run(
        ["make", "--no-print-directory", SHOW, "show", *among],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def python(folder: Path, name: str, *, lacks: str) -> Path:
    """Make a Python that cannot import a module."""
    file = folder / name
    file.write_text(
        f'#!/bin/sh\ncase $2 in *{lacks}*) exit 1;; esac\nexec {sys.executable} "$@"\n'
    )
    file.chmod(0o755)
    return file


def test_the_python_of_the_system_is_chosen_if_it_fits() -> None:
    fits = choose("/usr/bin/python3").returncode == 0

    assert choose().stdout.startswith("/usr/bin/python3") is fits


def test_a_python_that_does_not_fit_is_passed_over(tmp_path: Path) -> None:
    other = python(tmp_path, "other", lacks="sys")

    assert choose(other, tmp_path / "absent", sys.executable).stdout == sys.executable


def test_a_python_that_can_make_a_venv_is_preferred(tmp_path: Path) -> None:
    bare = python(tmp_path, "bare", lacks="ensurepip")

    assert choose(bare, sys.executable).stdout == sys.executable
    assert choose(bare).stdout == str(bare)


def test_make_says_which_pythons_fit_where_none_does(tmp_path: Path) -> None:
    done = choose(python(tmp_path, "other", lacks="sys"))

    assert done.returncode == 2
    assert "Poisonweb needs Python 3.11, 3.12 or 3.13" in done.stderr
