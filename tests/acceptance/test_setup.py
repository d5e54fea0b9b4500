from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.product import (
    copy_of_tree,
    end,
    environment,
    processes_of,
    started,
)

pytestmark = pytest.mark.acceptance

MAKE = shutil.which("make") or "make"
# No package can come from here.
OFFLINE = {
    "UV_OFFLINE": "1",
    "PIP_NO_INDEX": "1",
    "HTTPS_PROXY": "http://127.0.0.1:9",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return copy_of_tree(tmp_path / "a clone")


def make(tree: Path, *arguments: str, **changes: str) -> tuple[int, str]:
    done = subprocess.run(
        (MAKE, *arguments),
        cwd=tree,
        env=environment(**changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def pretend(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_one_command_runs_a_fresh_clone_and_leaves_nothing(tree: Path) -> None:
    with started(tree, MAKE, "run", seconds=180) as product:
        assert product.is_ready()
        end(product)
        assert processes_of(product.var) == set()

    with started(tree, MAKE, "run", seconds=30, changes=OFFLINE) as product:
        assert product.is_ready()
        product.process.terminate()
        product.process.wait(30)
        assert processes_of(product.var) == set()


def test_a_second_set_up_has_nothing_to_say(tree: Path) -> None:
    first, _ = make(tree, "dev")
    second = make(tree, "dev", **OFFLINE)

    assert first == 0
    assert second == (0, "")


def test_an_unfit_python_is_told_in_one_line(tree: Path, tmp_path: Path) -> None:
    old = 'test "$1" = -V && echo Python 3.8.18 || exit 1'
    pretend(tmp_path / "bin", "python3", old)

    code, said = make(tree, "run", PATH=str(tmp_path / "bin"))

    assert code == 2
    assert "needs Python 3.11, 3.12 or 3.13; here is: Python 3.8.18" in said
    assert said.count("\n") == 1


def test_a_fit_python_is_found_behind_an_unfit_one(tree: Path, tmp_path: Path) -> None:
    pretend(tmp_path / "bin", "python3", "exit 1")
    pretend(tmp_path / "bin", "python3.12", f'exec "{sys.executable}" "$@"')

    _, said = make(tree, "--dry-run", "dev", PATH=str(tmp_path / "bin"))

    assert said.startswith("python3.12 -P ")


def test_a_missing_venv_module_is_told_in_one_line(tree: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "sitecustomize.py").write_text(
        "import sys\nsys.modules['ensurepip'] = None\n"
    )

    code, said = make(tree, "--silent", "run", PYTHONPATH=str(missing))

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    line = f"Python has no venv module here: `apt-get install python{version}-venv`."
    assert code == 2
    assert said.splitlines()[0] == f"poisonweb: {line}"


def test_a_half_done_set_up_is_done_again(tree: Path) -> None:
    (tree / ".venv" / "bin").mkdir(parents=True)
    (tree / ".boot").mkdir()

    code, _ = make(tree, "dev")

    assert code == 0
    assert os.access(tree / ".venv" / "bin" / "pytest", os.X_OK)
