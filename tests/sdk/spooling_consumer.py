"""A consumer for tests to kill: it spools reports and says which it has kept."""

from __future__ import annotations

import sys
import threading
from itertools import count
from pathlib import Path

from poisonguard.server.http_client import Client
from poisonguard.server.report_sending import Reporter
from poisonguard.server.spool import Spool
from tests.sdk.failure_report_builder import confirmation, failure
from tests.sdk.fake_poisonweb_server import KEY


def main(url: str, folder: str, body_size: int) -> None:
    reporter = Reporter(Client([url], KEY), spool=Spool(Path(folder)))
    never = threading.Event()
    for number in count():
        report = failure(body=b"x" * body_size)
        reporter.poison(
            report, when_away="spool", keep_alive=None, stop=never, hold_for=0
        )
        say(str(report.report_id))
        redrive = f"{report.report_id}.{number}"
        reporter.confirm(confirmation(redrive))
        say(redrive)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
