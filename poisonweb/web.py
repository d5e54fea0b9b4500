"""Serve pages and API: `python -m poisonweb.web --host ADDRESS --port PORT`.

Uvicorn, with bounds that its own command line does not have, in two processes.
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

from poisonweb.costly import SWITCH_SECONDS, UVICORN, CostlyProcess, is_costly
from poisonweb.http import HandingOn


class _Server(uvicorn.Server):
    """Listens, and begins and ends together with the process for costly requests."""

    def __init__(self, config: uvicorn.Config, costly: CostlyProcess) -> None:
        super().__init__(config)
        self._costly = costly

    async def startup(self, sockets: list[socket] | None = None) -> None:
        self._costly.watch()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        await asyncio.gather(super().shutdown(sockets), self._costly.stop())


def main(words: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(prog="poisonweb.web", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    chosen = parser.parse_args(words)
    sys.setswitchinterval(SWITCH_SECONDS)
    # It begins to load the application while we do.
    costly = CostlyProcess()
    protocol = partial(HandingOn, is_for_another=is_costly, hand_on=costly.hand_on)
    config = uvicorn.Config(
        "poisonweb.asgi:application",
        host=chosen.host,
        port=chosen.port,
        http=protocol,  # type: ignore[arg-type] # uvicorn only calls it
        **UVICORN,
    )
    with suppress(KeyboardInterrupt):
        _Server(config, costly).run()


if __name__ == "__main__":
    main()
