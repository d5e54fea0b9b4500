"""A folder for PYTHONPATH, so that what tests start is held to this machine, too."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = str(Path(__file__).parent)


def install() -> None:
    """Have each Python that is started from now on load `sitecustomize` beside this.

    Not those that ignore PYTHONPATH (-I, -E), or are given another one.
    """
    path = os.environ.get("PYTHONPATH", "")
    if FOLDER not in path.split(os.pathsep):
        joined = (FOLDER, path) if path else (FOLDER,)
        os.environ["PYTHONPATH"] = os.pathsep.join(joined)
