"""Where processes that tests kill may leave their temporary files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def files_of_killed_processes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Keep them among the files of tests: a killed process removes none of its own.

    A temporary file anywhere else is a leak, and fails the part: see
    `tests.run_without_leftovers`.
    """
    folder = tmp_path_factory.mktemp("killed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        # Workers of xdist that ran Spark are ended from outside, too.
        patch.setattr(tempfile, "tempdir", str(folder))
        # Java knows no TMPDIR.
        patch.setenv("JDK_JAVA_OPTIONS", f"-Djava.io.tmpdir={folder}", prepend=" ")
        yield
