"""The tree of an earlier commit, for tests that run it beside this one."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from tests.acceptance.product_process import ROOT


def unpack(commit: str, folder: Path) -> Path:
    """Unpack an earlier commit; a shallow clone lacks it, and git says so."""
    archive = ("git", "archive", commit)
    done = subprocess.run(archive, cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archived:
        archived.extractall(folder, filter="data")
    return folder
