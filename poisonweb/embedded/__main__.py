"""Start the servers and all our processes, print when they are ready, restart them."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from poisonweb import env as settings
from poisonweb.embedded import process_plan, running_servers_file, supervisor
from poisonweb.embedded.errors import CannotStart
from poisonweb.embedded.free_ports import LOOPBACK, is_free
from poisonweb.embedded.process_control import Identity
from poisonweb.embedded.process_plan import Plan
from poisonweb.embedded.supervisor import Stopped, Supervisor
from poisonweb.env import BadEnvironment, Env

START_SECONDS = 60.0
# Most of it is for a new database, with its log and the sample's history.
ROOM_MIB = 200
LOG_BYTES = 1024 * 1024


def main() -> int:
    """Run the product until a signal; return 1 with a line that says why it cannot."""
    # Only our own user may read var/: secrets, data and logs.
    os.umask(0o077)
    try:
        env = settings.load(os.environ)
        port = _port("PORT", usual=8000)
        gateway_port = _port("GATEWAY_PORT", usual=port + 1)
        with _exclusive_lock(env.var):
            _run_installation(env, port, gateway_port)
    except Stopped:
        return 0
    except (BadEnvironment, CannotStart, OSError) as problem:
        sys.stderr.write(f"poisonweb: {problem}\n")
        return 1
    return 0


def _run_installation(env: Env, port: int, gateway_port: int) -> None:
    """Start all servers and programs of Poisonweb, supervise and then stop them."""
    supervisor.recover(env.var)
    running_servers_file.withdraw(env.var)
    for name, number in (("PORT", port), ("GATEWAY_PORT", gateway_port)):
        if not is_free(number):
            raise CannotStart(
                f"Port {number} is taken: stop what listens there, or choose another "
                f"one with `{name}={number + 2} make run`."
            )
    _check_room(env.var)
    _log_to(env.var / "log" / "supervisor.log")
    keeper = Supervisor(root=settings.ROOT, var=env.var)
    temporary = process_plan.temporary(env.var)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o700)
    try:
        installation = process_plan.make(
            env, port=port, gateway_port=gateway_port, environ=os.environ
        )
        _start(keeper, installation, env.var)
        print(_ready_line(env, port), flush=True)
        keeper.supervise()
    finally:
        running_servers_file.withdraw(env.var)
        keeper.stop()
        shutil.rmtree(temporary, ignore_errors=True)


def _start(keeper: Supervisor, installation: Plan, var: Path) -> None:
    """Start the installation's servers, prepare the database, start the programs.

    The web is the first of the programs, and has to be ready before the others start.
    """
    keeper.start(installation.servers)
    keeper.until_ready(seconds=START_SECONDS)
    running_servers_file.announce(
        var, installation.addresses, supervisor=Identity.own()
    )
    keeper.run(installation.prepare)
    # The web starts first and alone: the others would slow it down.
    web, *others = installation.processes
    keeper.start([web])
    keeper.until_ready(seconds=START_SECONDS)
    keeper.start(others)


def _port(name: str, *, usual: int) -> int:
    """Return the port for `make run` that a variable names, or else the usual one.

    Raises BadEnvironment if it is no port.
    """
    text = os.environ.get(name) or str(usual)
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65_536):
        raise BadEnvironment(f"{name} is {text!r}: use a number from 1 to 65535.")
    return int(text)


@contextmanager
def _exclusive_lock(var: Path) -> Iterator[None]:
    """Lock the folder `var` of an installation; the process's end releases it."""
    (var / "run").mkdir(parents=True, exist_ok=True)
    with (var / "run" / "lock").open("a+", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CannotStart(_running_already(lock.read())) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _running_already(pid: str) -> str:
    """Say which process runs Poisonweb in this folder, and how to stop it."""
    return (
        f"Poisonweb is running here already (process {pid}): stop it with Ctrl-C in "
        f"its terminal, or with `kill {pid}`."
    )


def _check_room(var: Path) -> None:
    """Raise CannotStart if the disk of `var` has too little room."""
    free = shutil.disk_usage(var).free // 2**20
    if free < ROOM_MIB:
        raise CannotStart(
            f"The disk of {var} has {free} MiB left, of {ROOM_MIB} MiB needed: make "
            "room, or choose another one with `POISONWEB_VAR=<folder> make run`."
        )


def _log_to(file: Path) -> None:
    """Write the log of `make run`'s supervisor to stderr and to a rotated file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file_handler = RotatingFileHandler(file, maxBytes=LOG_BYTES, backupCount=1)
    file_handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(
        level=logging.INFO,
        format="poisonweb: %(message)s",
        handlers=[logging.StreamHandler(), file_handler],
    )


def _ready_line(env: Env, port: int) -> str:
    """Return the line that says where Poisonweb is and how to sign in."""
    # The file exists only if the password was generated, and not chosen.
    file = env.var / "admin-password"
    is_generated = env.admin_password is None and file.exists()
    password = f"/ {file.read_text().strip()}" if is_generated else "with your password"
    sign_in = f"admin {password}"
    return f"Poisonweb is ready: http://{LOOPBACK}:{port}/  sign in as {sign_in}"


if __name__ == "__main__":
    sys.exit(main())
