"""Serve pages and API: `python -m poisonweb.web --host ADDRESS --port PORT`.

It runs Uvicorn in two processes, with limits that Uvicorn's command line lacks.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from socket import socket

import uvicorn

from poisonweb.form_and_large_body_process import (
    SWITCH_SECONDS,
    UVICORN,
    CostlyProcess,
    is_costly,
)
from poisonweb.uvicorn_http_protocol import ForwardingH11


class _Server(uvicorn.Server):
    """Listen, and start and stop together with the process for costly requests."""

    def __init__(self, config: uvicorn.Config, costly: CostlyProcess) -> None:
        super().__init__(config)
        self._costly = costly

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Start the web, and restart the process for costly requests when it ends."""
        self._costly.watch()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Stop the web and, at the same time, the process for costly requests."""
        await asyncio.gather(super().shutdown(sockets), self._costly.stop())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the web and its process for costly requests until a signal."""
    parser = ArgumentParser(prog="poisonweb.web", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args(arguments)
    sys.setswitchinterval(SWITCH_SECONDS)
    # Both processes load the application at the same time.
    costly = CostlyProcess()
    protocol = partial(ForwardingH11, is_for_another=is_costly, hand_on=costly.hand_on)
    config = uvicorn.Config(
        "poisonweb.asgi:application",
        host=options.host,
        port=options.port,
        http=protocol,  # type: ignore[arg-type] # uvicorn only calls it
        **UVICORN,
    )
    with suppress(KeyboardInterrupt):
        _Server(config, costly).run()


if __name__ == "__main__":
    main()
