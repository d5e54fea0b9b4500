"""A worker of xdist has time to remove its temporary files, also on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# multiprocessing removes the folder of its sockets as the process ends.
TEST = """
import time
from multiprocessing import util

def test_ends_slowly():
    util.Finalize(None, lambda: time.sleep(12), exitpriority=10)
    util.get_temp_dir()
"""


def test_a_worker_that_ends_slowly_removes_its_temporary_files(tmp_path: Path) -> None:
    file, files = tmp_path / "test_it.py", tmp_path / "files"
    file.write_text(TEST)
    files.mkdir()
    plugins = ("-p", "tests.xdist_schedule_plugin", "-p", "no:cacheprovider")
    command = (sys.executable, "-m", "pytest", "-n1", "-c", os.devnull, *plugins)

    subprocess.run(
        (*command, "--rootdir", str(tmp_path), str(file)),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(files)},
        check=True,
        capture_output=True,
    )

    assert list(files.glob("pymp-*")) == []
