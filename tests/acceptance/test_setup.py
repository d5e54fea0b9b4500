"""From nothing to a running product, on each machine that the README promises."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from shlex import quote, split

import pytest

from poisonweb.embedded import postgres
from poisonweb.embedded.set_up_venv import VENV_MIB
from tests import machine_requirements
from tests.acceptance.product_process import (
    ODD_NAME,
    PATIENCE,
    PYTHON,
    START,
    Product,
    clone,
    copy_of_tree,
    end,
    environment,
    on_small_disk,
    processes_of,
    refused,
    started,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance

MAKE = shutil.which("make") or "make"
# No package can come from here.
OFFLINE = {
    "UV_OFFLINE": "1",
    "PIP_NO_INDEX": "1",
    "HTTPS_PROXY": "http://127.0.0.1:9",
}

THIS_PYTHON = "{}.{}".format(*sys.version_info)
OTHER_PYTHONS = [
    pytest.param(version, marks=pytest.mark.needs(f"python{version}"))
    for version in machine_requirements.PYTHONS
    if version != THIS_PYTHON
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return copy_of_tree(tmp_path / ODD_NAME)


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
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def kill_a_worker_with_temporary_files(product: Product) -> None:
    """Kill Celery's worker, which removes its own only when it ends by itself."""
    wait_until(lambda: any((product.var / "tmp").glob("pymp-*")), seconds=180)
    os.kill(product.pid("worker"), signal.SIGKILL)


def test_one_command_runs_a_fresh_clone_and_leaves_nothing(
    tree: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    here = Path(sys.base_prefix, "bin", f"python{THIS_PYTHON}")
    command = (MAKE, "run", f"PYTHON={here}")

    with started(tree, *command, changes={"TMPDIR": str(temporary)}) as product:
        assert product.is_ready()
        kill_a_worker_with_temporary_files(product)
        end(product)
        assert processes_of(product.var) == set()
        assert not (product.var / "tmp").exists()
        assert [*temporary.iterdir()] == []

    with started(tree, *command, changes=OFFLINE) as product:
        assert product.is_ready()
        product.process.terminate()
        product.process.wait(PATIENCE)
        assert processes_of(product.var) == set()


@pytest.mark.parametrize("version", OTHER_PYTHONS)
def test_runs_on_every_other_python(tree: Path, version: str) -> None:
    command = (MAKE, "run", f"PYTHON={machine_requirements.python(version)}")
    changes = {"POISONWEB_DEMO": "0"}

    with started(tree, *command, changes=changes) as product:
        assert product.is_ready()


# Root's way through closed folders is theirs: our Python may well lie under /root.
ORDINARY_USER = postgres.AS_NOBODY if os.geteuid() == 0 else ()


@pytest.mark.parametrize("user", [(), ORDINARY_USER], ids=["own", "ordinary"])
def test_runs_in_a_container_and_leaves_nothing(
    tmp_path: Path, user: tuple[str, ...]
) -> None:
    tree = clone(tmp_path / ODD_NAME)
    tree.chmod(0o700)
    command = (*user, PYTHON, "-m", "tests.run_with_container_restrictions", *START)

    with started(tree, *command, changes={"POISONWEB_DEMO": "0"}) as product:
        assert product.is_ready()
        end(product)
        assert processes_of(product.var) == set()


def test_a_disk_without_room_for_packages_is_told_in_one_line(
    tree: Path, tmp_path: Path
) -> None:
    changes = on_small_disk(tree, shim=tmp_path / "shim")

    said = refused(tree, MAKE, "run", changes=changes)

    needed = "63 MiB left, and the set-up needs 100 MiB there: make room"
    assert said.startswith(f"poisonweb: The disk of {tree} has {needed}")


def test_a_half_done_set_up_is_done_again_and_then_is_done(tree: Path) -> None:
    (tree / ".venv" / "bin").mkdir(parents=True)
    (tree / ".boot").mkdir()

    first, _ = make(tree, "dev")
    second = make(tree, "dev", **OFFLINE)

    assert first == 0
    assert second == (0, "")
    assert os.access(tree / ".venv" / "bin" / "pytest", os.X_OK)
    assert mebibytes(tree / ".venv") < VENV_MIB["dev"]


def mebibytes(folder: Path) -> int:
    result = subprocess.run(
        ("du", "--summarize", "--block-size=M", str(folder)),
        capture_output=True,
        text=True,
        check=True,
    )
    return int(result.stdout.partition("M")[0])


def test_spark_is_told_of_its_archive_of_classes_in_an_odd_folder(tree: Path) -> None:
    show = 'printf "%s\\n" "$SPARK_SUBMIT_OPTS"'
    pretend(tree / ".venv" / "bin", "python", show)

    code, said = make(tree, "soak", "INSTALL=true")

    archive = tree / ".venv" / "spark.jsa"
    options = split(archive.with_name("spark.jsa.log").read_text())
    assert code == 0
    assert options[0] == f"-XX:ArchiveClassesAtExit={archive}"
    assert split(said.splitlines()[-1]) == [f"-XX:SharedArchiveFile={archive}"]


def test_an_unfit_python_is_told_in_one_line(tree: Path, tmp_path: Path) -> None:
    old = 'test "$1" = -V && echo Python 3.8.18 || exit 1'
    pretend(tmp_path / "bin", "python3", old)

    code, said = make(tree, "run", PATH=str(tmp_path / "bin"))

    assert code == 2
    assert "needs Python 3.11, 3.12 or 3.13; here is: Python 3.8.18" in said
    assert said.count("\n") == 1


def test_a_fit_python_is_found_behind_an_unfit_one(tree: Path, tmp_path: Path) -> None:
    pretend(tmp_path / "bin", "python3", "exit 1")
    pretend(tmp_path / "bin", "python3.12", f'exec {quote(sys.executable)} "$@"')

    _, said = make(tree, "--dry-run", "dev", PATH=str(tmp_path / "bin"))

    assert said.startswith("python3.12 -P ")


def test_a_missing_venv_module_is_told_in_one_line(tree: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "sitecustomize.py").write_text(
        "import sys\nsys.modules['ensurepip'] = None\n"
    )

    code, said = make(tree, "--silent", "run", PYTHONPATH=str(missing))

    name = f"python{THIS_PYTHON}-venv"
    line = f"Python has no venv module here: `apt-get install {name}`."
    assert code == 2
    assert said.splitlines()[0] == f"poisonweb: {line}"
