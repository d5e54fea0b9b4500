"""Finding Java: JAVA_HOME, the path, the package; and a clear error without any."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from spark import java_discovery

PATH = "/usr/bin:/bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    return tmp_path


def make(folder: Path, version: str) -> None:
    program = folder / "bin/java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)


def test_finds_the_java_of_java_home(folder: Path) -> None:
    make(folder, "21.0.1")

    assert java_discovery.find({"JAVA_HOME": str(folder)}) == {"JAVA_HOME": str(folder)}


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392"])
def test_refuses_a_java_home_that_is_too_old(folder: Path, version: str) -> None:
    make(folder, version)

    with pytest.raises(
        java_discovery.NoJava, match=r"JAVA_HOME is .* install Java 17 or newer"
    ):
        java_discovery.find({"JAVA_HOME": str(folder), "PATH": PATH})


def test_reports_a_java_home_without_java(folder: Path) -> None:
    with pytest.raises(java_discovery.NoJava, match="no bin/java works there"):
        java_discovery.find({"JAVA_HOME": str(folder)})


def test_leaves_a_java_on_the_path_to_spark(folder: Path) -> None:
    make(folder, "17")

    assert java_discovery.find({"PATH": str(folder / "bin")}) == {}


@pytest.mark.parametrize("on_the_path", ["11.0.2", None])
def test_prefers_the_package_to_an_old_java_on_the_path(
    folder: Path, on_the_path: str | None
) -> None:
    if on_the_path:
        make(folder, on_the_path)

    variables = java_discovery.find({"PATH": str(folder / "bin")})

    command = [f"{variables['JAVA_HOME']}/bin/java", *ASKED_BY_SPARK, "-version"]
    done = subprocess.run(
        command,
        env={"PATH": PATH, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "openjdk version" in done.stderr


# This Java lacks the module of the first; the second must be passed on unchanged.
ASKED_BY_SPARK = ("--add-modules=jdk.incubator.vector", "-Dsome=a 'b' $c *")


def test_explains_in_one_line_what_to_do_without_a_java(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_discovery, "find_spec", lambda _: None)

    with pytest.raises(java_discovery.NoJava) as raised:
        java_discovery.find({"PATH": str(folder)})

    assert str(raised.value) == f"there is no Java: {java_discovery.REMEDY}"
