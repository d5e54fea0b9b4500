"""The port of the sample's stock quote service, the same at every start.

The endpoint of the gateway names it, so another port would be a change of the endpoint.
"""

from __future__ import annotations

from pathlib import Path

from poisonweb.embedded.free_ports import free_port, is_free
from poisonweb.embedded.secrets import write_private

FILE = "sample-stock-quote-port"


def choose(var: Path) -> int:
    """Return the port of the last start of the sample's quote service.

    Return another one if it is taken, or at the first start.
    """
    last_port = read(var)
    if last_port is not None and is_free(last_port):
        return last_port
    port = free_port()
    write_private(var / FILE, str(port))
    return port


def read(var: Path) -> int | None:
    """Return the port of the sample's last quote service; None before the first."""
    file = var / FILE
    return int(file.read_text(encoding="ascii")) if file.exists() else None
