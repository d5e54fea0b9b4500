"""Serve pages and API: `python -m poisonweb.web --host ADDRESS --port PORT`.

Uvicorn, with bounds that its own command line does not have.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

import uvicorn

from poisonweb.http import BoundedH11

SWITCH_SECONDS = 0.001


def main(words: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(prog="poisonweb.web", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    chosen = parser.parse_args(words)
    # A request gives the interpreter away with each question to Postgres, and waits so
    # long for it whenever another thread is at work.
    sys.setswitchinterval(SWITCH_SECONDS)
    uvicorn.run(
        "poisonweb.asgi:application",
        host=chosen.host,
        port=chosen.port,
        http=BoundedH11,
        lifespan="off",
        access_log=False,
        server_header=False,
        # Without it an open stream keeps the server from ending.
        timeout_graceful_shutdown=2,
    )


if __name__ == "__main__":
    main()
