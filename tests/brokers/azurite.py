"""Azurite's queues on a free loopback port, which can be killed and started again.

Azurite confirms a message at once but writes to disk only every five seconds; Azure has
three copies before it answers. So `kill` makes Azurite save and die in one step: it
answers no request in between, and cuts off all clients. `look` shows a queue's
messages, hidden or not, and changes nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from poisonweb.embedded.free_ports import LOOPBACK, free_port
from tests.waiting import await_start

ACCOUNT = "devstoreaccount1"
# Azurite pages through the queues of an account in the order of their making, but sorts
# each page by name. This account is for the one test that lists it.
LISTED_ACCOUNT = "listed"
# Every Azurite has this key, printed in its documentation: no secret.
KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeks"
    "oGMGw=="
)
REMEDY = "npm install --prefix .venv/azurite azurite@3.35 (and Node 18 or newer)"

# Loaded into Azurite before its own code: on SIGUSR2 it saves everything and dies; on
# another port it shows a queue.
OURS = """
const fs = require("fs");
const http = require("http");
const { createRequire } = require("module");
const Loki = createRequire(process.argv[1])("lokijs");
const books = [];
const enable = Loki.prototype.autosaveEnable;
Loki.prototype.autosaveEnable = function (...given) {
  books.push(this);
  return enable.apply(this, given);
};
process.on("SIGUSR2", () => {
  for (const book of books) fs.writeFileSync(book.filename, book.serialize());
  process.kill(process.pid, "SIGKILL");
});

function textOf({ id, offset, count }) {
  const stored = fs.readFileSync("__queuestorage__/" + id);
  return stored.subarray(offset, offset + count).toString("utf-8");
}

http.createServer((request, answer) => {
  const queueName = request.url.slice(1);
  const found = books
    .map((book) => book.getCollection("$MESSAGES_COLLECTION$"))
    .flatMap((messages) => (messages ? messages.find({ queueName }) : []))
    .sort((one, other) => one.$loki - other.$loki);
  const told = found.map((message) => ({
    text: textOf(message.persistency),
    dequeue_count: message.dequeueCount,
    expires_at: message.expirationTime,
    visible_at: new Date(message.timeNextVisible).toISOString(),
  }));
  answer.end(JSON.stringify(told));
}).listen(Number(process.env.LOOK_PORT), "127.0.0.1");
"""


def missing() -> str:
    """Return what to install for Azurite; "" if nothing."""
    return "" if shutil.which("node") and _program() else REMEDY


@dataclass(frozen=True, kw_only=True, slots=True)
class AzureQueueMessage:
    """A message as Azurite stores it."""

    text: str
    dequeue_count: int
    expires_at: str
    visible_at: str


class AzuriteServer:
    """An Azurite of its own; `url` is a connection string."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "ours.cjs").write_text(OURS)
        self.port, self._look_port = free_port(), free_port()
        self.process = self._spawn()

    @property
    def endpoint(self) -> str:
        return self._endpoint_of(ACCOUNT)

    @property
    def url(self) -> str:
        return self.url_of(ACCOUNT)

    def url_of(self, account: str) -> str:
        return (
            f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={KEY};"
            f"QueueEndpoint={self._endpoint_of(account)};"
        )

    def _endpoint_of(self, account: str) -> str:
        return f"http://{LOOPBACK}:{self.port}/{account}"

    def start(self) -> None:
        if self.process.poll() is not None:
            self.process = self._spawn()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGUSR2)
        self.process.wait()

    def freeze(self) -> None:
        """Let Azurite accept calls and answer none."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def look(self, queue: str) -> list[AzureQueueMessage]:
        """Return the messages of an Azure queue, hidden or not, oldest first."""
        url = f"http://{LOOPBACK}:{self._look_port}/{queue}"
        with urlopen(url, timeout=60) as reply:
            return [AzureQueueMessage(**fields) for fields in json.load(reply)]

    def _spawn(self) -> subprocess.Popen[bytes]:
        log = self._folder / "log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "--"),
                    *("node", "--require", str(self._folder / "ours.cjs")),
                    *(str(_program()), "--skipApiVersionCheck", "--disableTelemetry"),
                    *("--silent", "--queueHost", LOOPBACK),
                    *("--queuePort", str(self.port), "--location", str(self._folder)),
                ],
                cwd=self._folder,
                env={
                    **os.environ,
                    "LOOK_PORT": str(self._look_port),
                    "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY};{LISTED_ACCOUNT}:{KEY}",
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        await_start(process, lambda: _listens(self.port), describe=log.read_text)
        return process


def _program() -> Path | None:
    """Find `azurite-queue`, as a script that Node runs."""
    ours = Path(sys.prefix, "azurite", "node_modules", ".bin")
    path = shutil.which("azurite-queue", path=ours) or shutil.which("azurite-queue")
    return Path(path).resolve() if path else None


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=5):
            return True
    except OSError:
        return False
