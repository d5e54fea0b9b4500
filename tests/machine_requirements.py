"""A pytest plugin: what tests need of the machine, and what did not run without it.

A test says it by `@pytest.mark.needs("rabbitmq")`. Where that is missing it does not
run, but never in silence: the run ends with a list, and with an exit code of its own.
In CI (`CI=true`) such a test fails. `python -m tests.machine_requirements` gets what
can be had.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import pytest

from tests.brokers import install_broker_servers

# What pytest exits with when all that ran has passed; `tests.suite_parts_runner` makes
# a 3 of it.
UNMET = 33
# The one without windows does the same work for a fifth less of the processor.
BROWSERS = ("chromium-headless-shell", "chromium")
# Those that the README promises, and what one of them has to have to set up.
PYTHONS = ("3.11", "3.12", "3.13")
CAN_SET_UP = "import sys, ensurepip, venv; print('%d.%d' % sys.version_info[:2])"
JDBC_JAR = Path("/usr/share/java/postgresql.jar")
SAID = "Skipped: needs "


def browser() -> str | None:
    """Find the browser to test with."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def python(version: str) -> str | None:
    """Find a Python of that version on this machine which can set up."""
    installed = Path.home().glob(f".pyenv/versions/{version}.*/bin/python3")
    places = [shutil.which(f"python{version}"), *installed, f"/usr/bin/python{version}"]
    fit = (str(place) for place in places if place and _can_set_up(place, version))
    return next(fit, None)


def _can_set_up(place: str | Path, version: str) -> bool:
    command = (place, "-c", CAN_SET_UP)
    with suppress(OSError):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() == version
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """Something on this machine: `remedy` is what to do about it, "" if it is there.

    Without `get` it is for people to install.
    """

    remedy: Callable[[], str]
    get: Callable[[], None] | None = None


def _file(path: Path, *, package: str) -> str:
    return "" if path.exists() else f"apt-get install {package}"


def _server(module: str) -> str:
    missing: Callable[[], str] = import_module(f"tests.brokers.{module}").missing
    return missing()


def _python(version: str) -> str:
    remedy = f"apt-get install python{version}-venv, or pyenv install {version}"
    return "" if python(version) else remedy


def _from_debian(package: str) -> Callable[[], None]:
    return partial(install_broker_servers.from_debian, package)


def _browser() -> str:
    return "" if browser() else f"apt-get install {BROWSERS[0]}"


NEEDS = {
    "chromium": Need(remedy=_browser, get=_from_debian(BROWSERS[0])),
    "jdbc": Need(
        remedy=partial(_file, JDBC_JAR, package="libpostgresql-jdbc-java"),
        get=_from_debian("libpostgresql-jdbc-java"),
    ),
    "rabbitmq": Need(
        remedy=partial(_server, "rabbitmq"), get=_from_debian("rabbitmq-server")
    ),
    "azurite": Need(
        remedy=partial(_server, "azurite"), get=install_broker_servers.azurite
    ),
    "compiler": Need(
        remedy=partial(_file, Path("/usr/bin/cc"), package="gcc libc6-dev"),
        get=partial(install_broker_servers.from_debian, "gcc", "libc6-dev"),
    ),
    "moto": Need(
        remedy=partial(_server, "moto"), get=install_broker_servers.with_our_packages
    ),
    "pgbouncer": Need(
        remedy=partial(_server, "pgbouncer"), get=_from_debian("pgbouncer")
    ),
    "zookeeper": Need(
        remedy=partial(_server, "zookeeper"),
        get=install_broker_servers.with_our_packages,
    ),
    **{
        f"python{version}": Need(remedy=partial(_python, version))
        for version in PYTHONS
    },
}


def of(item: pytest.Item) -> list[str]:
    """Name the programs that a test needs."""
    needs = [str(mark.args[0]) for mark in item.iter_markers("needs")]
    return [*needs, *(["chromium"] if item.get_closest_marker("browser") else [])]


@cache
def remedy(name: str) -> str:
    return NEEDS[name].remedy()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(name): what has to be on the machine")


@pytest.hookimpl(tryfirst=True)  # before any fixture starts what is not there
def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in of(item):
        if todo := remedy(name):
            if os.environ.get("CI") == "true":
                pytest.fail(f"needs {name}, also in CI: {todo}", pytrace=False)
            pytest.skip(f"{SAID.removeprefix('Skipped: ')}{name}: {todo}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for (suite, why), count in sorted(_unmet(config).items()):
        terminalreporter.write_line(f"DID NOT RUN: {count} of {suite}, {why}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and _unmet(session.config):
        session.exitstatus = UNMET


def _unmet(config: pytest.Config) -> Counter[tuple[str, str]]:
    """Count the tests that did not run, by their file and by what they need.

    The workers of xdist report to the controller, which alone has this plugin.
    """
    skipped = Counter[tuple[str, str]]()
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    for report in reporter.stats.get("skipped", ()) if reporter else ():
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if why.startswith(SAID):
            skipped[report.nodeid.partition("::")[0], why[len("Skipped: ") :]] += 1
    return skipped


def main(names: Sequence[str]) -> int:
    """Install what the tests lack, and print what cannot be had; never fail."""
    for name in names or NEEDS:
        if todo := NEEDS[name].remedy():
            _get(name, todo)
    return 0


def _get(name: str, todo: str) -> None:
    get = NEEDS[name].get
    if get is None:
        _tell(f"some tests will not run without {name}: {todo}")
        return
    try:
        _tell(f"installing {name} for the tests ...")
        get()
    except install_broker_servers.Unable as why:
        _tell(f"some tests will not run without {name}, and {why}: {todo}")


def _tell(line: str) -> None:
    sys.stderr.write(f"poisonweb: {line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
