"""A RabbitMQ on free loopback ports, with a folder of its own, that can be killed.

It runs without its wrapper, which would change the user, and with an epmd of its own:
the process is the broker, and nothing of it survives. Its management plugin is enabled;
`manage` calls it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import urllib3
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from poisonweb.embedded.free_ports import LOOPBACK, free_port
from tests.waiting import await_start

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
EPMD = Path("/usr/bin/epmd")
PLUGINS = ("rabbitmq_management",)
START_SECONDS = 300.0
# No busy waiting: these machines are small and shared.
ERLANG = "+sbwt none +sbwtdcpu none +sbwtdio none"

CONFIGURATION = """
listeners.tcp.1 = 127.0.0.1:{port}
listeners.ssl.1 = 127.0.0.1:{tls_port}
ssl_options.cacertfile = {folder}/certificate.pem
ssl_options.certfile = {folder}/certificate.pem
ssl_options.keyfile = {folder}/key.pem
management.tcp.ip = 127.0.0.1
management.tcp.port = {management_port}
disk_free_limit.absolute = 50MB
vm_memory_high_watermark.relative = 0.6
collect_statistics_interval = 500
log.file.level = warning
"""


def missing() -> str:
    """Return what to install for RabbitMQ; "" if nothing."""
    there = PROGRAM.exists() and EPMD.exists()
    return "" if there else "apt-get install rabbitmq-server"


class RabbitMqServer:
    """A broker of its own; `url` is its address over plain TCP, `tls_url` over TLS."""

    def __init__(
        self, folder: Path, *, plugins: tuple[str, ...] = PLUGINS, schedulers: int = 1
    ) -> None:
        self._folder = folder
        self._erlang = f"{ERLANG} +S {schedulers}:{schedulers}"
        self.port, self.tls_port = free_port(), free_port()
        self.management_port = free_port()
        self._epmd_port, self._distribution_port = free_port(), free_port()
        self._pool = urllib3.PoolManager(retries=False, timeout=60)
        self.certificate = folder / "certificate.pem"
        _make_certificate(folder)
        self._write("rabbitmq.conf", CONFIGURATION.format(**vars(self), folder=folder))
        self._write("plugins", f"[{','.join(plugins)}].")
        self._epmd = self._start_epmd()
        self.start()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}/"

    @property
    def tls_url(self) -> str:
        return f"amqps://guest:guest@{LOOPBACK}:{self.tls_port}/"

    @property
    def management_url(self) -> str:
        return f"http://{LOOPBACK}:{self.management_port}"

    def start(self) -> None:
        self.process = self._spawn([str(PROGRAM), "-noinput"])
        await_start(
            self.process, self._serves, seconds=START_SECONDS, describe=self._said
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        for process in (self.process, self._epmd):
            process.kill()
            process.wait()
        self._pool.clear()

    def connection(self) -> pika.BlockingConnection:
        """Connect to RabbitMQ with pika, as other programs do."""
        return pika.BlockingConnection(pika.URLParameters(f"{self.url}%2F"))

    def manage(self, method: str, *path: str, **body: object) -> Any:
        """Call RabbitMQ's management plugin; each part of a path is quoted."""
        where = "/".join(quote(part, safe="") for part in ("api", *path))
        reply = self._pool.request(
            method,
            f"{self.management_url}/{where}",
            headers=urllib3.make_headers(basic_auth="guest:guest")
            | {"Content-Type": "application/json"},
            body=json.dumps(body) if body else None,
        )
        assert reply.status < 300, reply.data
        return json.loads(reply.data) if reply.data else None

    def ctl(self, *command: str) -> None:
        """Run rabbitmqctl; it is slow, so use it seldom."""
        subprocess.run(
            [str(PROGRAM.with_name("rabbitmqctl")), *command],
            env=self._environment(),
            check=True,
            capture_output=True,
            timeout=START_SECONDS,
        )

    def _start_epmd(self) -> subprocess.Popen[bytes]:
        """Start epmd, and wait until it answers.

        RabbitMQ would start another one in place of an epmd that does not answer yet,
        and that one would outlive it.
        """
        address = (LOOPBACK, self._epmd_port)
        process = self._spawn(
            [str(EPMD), "-port", str(address[1]), "-address", LOOPBACK]
        )
        await_start(process, partial(_answers, address), describe=self._said)
        return process

    def _serves(self) -> bool:
        try:
            self.manage("GET", "overview")
        except (AssertionError, OSError, urllib3.exceptions.HTTPError):
            return False
        # RabbitMQ opens its ports last.
        return _answers((LOOPBACK, self.port))

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / "output").open("ab") as output:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command],
                cwd=self._folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _environment(self) -> dict[str, str]:
        folder = str(self._folder)
        distribution = (
            "-kernel inet_dist_use_interface {127,0,0,1}"
            f" inet_dist_listen_min {self._distribution_port}"
            f" inet_dist_listen_max {self._distribution_port}"
        )
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            # Erlang creates its cookie there.
            "HOME": folder,
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": f"poisonweb{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{distribution} {self._erlang}",
            # Lets the script become the broker, instead of waiting for it.
            "RABBITMQ_ALLOW_INPUT": "1",
        }

    def _write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)

    def _said(self) -> str:
        return (self._folder / "output").read_text(errors="replace")[-2_000:]


def _answers(address: tuple[str, int]) -> bool:
    """Tell whether a server takes connections at an address."""
    try:
        socket.create_connection(address, timeout=5).close()
    except OSError:
        return False
    return True


def _make_certificate(folder: Path) -> None:
    """Create a self-signed certificate of RabbitMQ and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.now(UTC)
    address = x509.IPAddress(ip_address(LOOPBACK))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            pem,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
