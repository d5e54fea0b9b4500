"""Install the servers to test against, without starting any.

Each test that needs one starts its own, on free loopback ports and in a folder of its
own (the modules beside this one), and stops it by its pid.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Debian's packages run this before they start a service; 101 forbids it.
POLICY = Path("/usr/sbin/policy-rc.d")
FORBIDDEN = "#!/bin/sh\nexit 101\n"
# Versions and checksums of Azurite and its dependencies.
PINS = Path(__file__).with_name("npm")
AZURITE = Path(sys.prefix) / "azurite"


class Unable(Exception):
    """The server cannot be installed here; the message says why."""


def from_debian(*packages: str) -> None:
    """Install broker packages as root, without starting their services."""
    if os.geteuid() != 0:
        raise Unable("only root can install it")
    if shutil.which("apt-get") is None:
        raise Unable("there is no apt-get")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ("install", "-qq", "--yes", "--no-install-recommends", *packages)
    with starting_nothing():
        for arguments in (("update", "-qq"), install):
            _run("apt-get", *arguments, environment=quiet)


def azurite() -> None:
    """Install Azurite beside our own packages; npm checks the pins."""
    if shutil.which("npm") is None:
        from_debian("nodejs", "npm")
    AZURITE.mkdir(exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PINS / name, AZURITE / name)
    offline = ("--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts")
    _run("npm", "ci", "--silent", *offline, "--prefix", str(AZURITE))


def with_our_packages() -> None:
    raise Unable("`make dev` installs it")


@contextmanager
def starting_nothing(policy: Path = POLICY) -> Iterator[None]:
    """Keep packages from starting services; obey an existing policy."""
    if policy.exists():
        yield
        return
    policy.write_text(FORBIDDEN)
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()


def _run(*command: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Unable(f"{command[0]} failed: {lines[-1] if lines else done.returncode}")
