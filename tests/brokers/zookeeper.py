"""A ZooKeeper on a free loopback port: the one among the classes of Spark.

It keeps its data over a kill. `expire` ends the session of a client, and `watches` says
how many nodes are watched.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.protocol.serialization import (
    Close,
    Connect,
    int_int_struct,
    int_struct,
)

from poisonweb.embedded.free_ports import LOOPBACK, free_port
from spark import java_discovery
from tests.waiting import await_start, wait_until

LIBRARIES = (
    *("zookeeper-3", "zookeeper-jute-", "slf4j-api-", "metrics-core-", "snappy-java-"),
    *("commons-io-", "commons-cli-", "netty-buffer-", "netty-codec-4"),
    *("netty-codec-base-", "netty-codec-compression-", "netty-common-"),
    *("netty-handler-4", "netty-resolver-4", "netty-transport-4"),
    *("netty-transport-classes-epoll-", "netty-transport-native-unix-common-"),
)
# A start is short: a compiler that optimises does not pay off.
JAVA = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
SESSION_MILLISECONDS = 10_000
# Its length, the version of the protocol, the session's time-out and id.
CONNECT_ANSWER = struct.Struct("!iiiq")
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
CONFIGURATION = """
tickTime=500
dataDir={folder}/data
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
maxSessionTimeout=60000
maxClientCnxns=0
4lw.commands.whitelist=srvr,wchs
"""


def missing() -> str:
    """Return what to install for ZooKeeper; "" if nothing."""
    try:
        java_discovery.find(os.environ)
    except java_discovery.NoJava as why:
        return str(why)
    return "" if find_spec("pyspark") else "pip install -r spark/requirements.txt"


class ZooKeeperServer:
    """A ZooKeeper of its own; `hosts` is its address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        (folder / "data").mkdir()
        text = CONFIGURATION.format(folder=folder, port=self.port)
        (folder / "zoo.cfg").write_text(text)
        self.start()

    @property
    def hosts(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> None:
        variables = java_discovery.find(os.environ)
        home = variables.get("JAVA_HOME")
        java = f"{home}/bin/java" if home else str(shutil.which("java"))
        log = self._folder / "log"
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "--", java, *JAVA),
                    *("-cp", _class_path(), MAIN, str(self._folder / "zoo.cfg")),
                ],
                cwd=self._folder,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        # It says `imok` before it answers clients; some of what comes while it starts
        # it takes and never answers.
        await_start(
            self.process,
            lambda: "Mode:" in self.ask("srvr", seconds=1),
            describe=log.read_text,
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Let ZooKeeper accept calls and answer none."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.kill()

    def expire(self, client: KazooClient) -> None:
        """End a ZooKeeper client's session."""
        wait_until(partial(self._ends_session, *client.client_id))

    def _ends_session(self, session: int, password: bytes) -> bool:
        """End a session, by a connection that takes it over; False if that failed.

        The session's client connects again at once. So that it does not take the
        session back, one packet asks for the session and for its end.
        """
        take_over = Connect(0, 0, SESSION_MILLISECONDS, session, password, False)
        requests = (bytes(take_over.serialize()), int_int_struct.pack(1, Close.type))
        packet = b"".join(int_struct.pack(len(each)) + each for each in requests)
        with socket.create_connection((LOOPBACK, self.port), timeout=60) as link:
            link.sendall(packet)
            answers = b"".join(iter(lambda: link.recv(65_536), b""))
        if len(answers) < CONNECT_ANSWER.size:
            return False
        length, _, timeout, _ = CONNECT_ANSWER.unpack_from(answers)
        was_gone: bool = timeout == 0
        return was_gone or len(answers) > int_struct.size + length

    def watches(self) -> int:
        """Return how many watches all ZooKeeper sessions have."""
        *_, last_line = self.ask("wchs").strip().splitlines()
        return int(last_line.rpartition(":")[2])

    def ask(self, command: str, *, seconds: float = 60) -> str:
        """Send ZooKeeper a command of four letters; "" if no answer comes in time."""
        with suppress(OSError), socket.create_connection((LOOPBACK, self.port)) as link:
            link.settimeout(seconds)
            link.sendall(command.encode())
            return b"".join(iter(lambda: link.recv(65_536), b"")).decode()
        return ""


def _class_path() -> str:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    jars = Path(spec.origin).parent.glob("jars/*.jar")
    return ":".join(str(jar) for jar in jars if jar.name.startswith(LIBRARIES))
