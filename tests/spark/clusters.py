"""A real Spark cluster on loopback: a standalone master and one worker."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import pyspark

from poisonweb.embedded import process_control
from poisonweb.embedded.process_control import Program
from spark import java_discovery

LOOPBACK = "127.0.0.1"
SPARK_HOME = Path(pyspark.__file__).parent
# The settings of docs/operators.md, and some that keep the cluster small and local.
SETTINGS = """
spark.authenticate true
spark.authenticate.secret {secret}
spark.network.crypto.enabled true
spark.io.encryption.enabled true
spark.master.rest.enabled false
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.executor.memory 512m
spark.cores.max 1
spark.local.dir {folder}/local
spark.sql.shuffle.partitions 4
spark.eventLog.enabled true
spark.eventLog.compress false
spark.eventLog.dir file://{folder}/events
"""
MASTER_STARTED = re.compile(r"Successfully started service 'sparkMaster' on port (\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """A running cluster; all of its files are in `folder`."""

    master: str
    folder: Path

    @property
    def settings(self) -> Path:
        return self.folder / "conf"

    @property
    def workers(self) -> Path:
        return self.folder / "work"

    @property
    def local(self) -> Path:
        return self.folder / "local"

    @property
    def events(self) -> Path:
        return self.folder / "events"


def files(folder: Path) -> Iterator[Path]:
    """List the files of a folder; Spark may delete some of its folders meanwhile."""
    for here, _, names in os.walk(folder):
        yield from (Path(here, name) for name in names)


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Run a Spark master and a worker of one core during the block."""
    for name in ("conf", "work", "local", "events"):
        (folder / name).mkdir(parents=True)
    defaults = folder / "conf/spark-defaults.conf"
    defaults.touch(mode=0o600)
    defaults.write_text(SETTINGS.format(secret=token_hex(16), folder=folder))
    with process_control.running(_daemon(folder, "Master"), folder=folder):
        port = _said(folder / "Master.log", MASTER_STARTED)
        cluster = Cluster(master=f"spark://{LOOPBACK}:{port}", folder=folder)
        of_worker = ("--cores", "1", "--memory", "700m", "--work-dir", "work")
        worker = _daemon(folder, "Worker", *of_worker, cluster.master)
        with process_control.running(worker, folder=folder):
            yield cluster


def _daemon(folder: Path, name: str, *arguments: str) -> Program:
    ready = {
        "Master": "I have been elected leader",
        "Worker": "Successfully registered",
    }
    package = f"org.apache.spark.deploy.{name.lower()}"
    ports = ("--host", LOOPBACK, "--port", "0", "--webui-port", "0")
    settings = ("--properties-file", "conf/spark-defaults.conf")
    return Program(
        name=name,
        command=(
            *(str(SPARK_HOME / "bin/spark-class"), f"{package}.{name}"),
            *(*ports, *settings, *arguments),
        ),
        environment=_plain_environment(),
        ready=lambda _: _said(folder / f"{name}.log", re.compile(ready[name])) != "",
    )


def _plain_environment() -> dict[str, str]:
    """Return a minimal environment, without our code and database."""
    inherited = ("PATH", "HOME", "LANG", "JDK_JAVA_OPTIONS")
    return {
        **{name: os.environ[name] for name in inherited if name in os.environ},
        **java_discovery.find(os.environ),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "256m",
    }


def _said(log: Path, words: re.Pattern[str]) -> str:
    """Search a Spark log; return the match's group, or the match, or ""."""
    match = words.search(log.read_text(errors="replace"))
    return match[match.re.groups] if match else ""
