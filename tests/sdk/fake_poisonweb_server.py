"""The double of Poisonweb as the tests of the SDK use it: started, and trusting.

It takes any redrive mark, for tests write their own, and makes no skip of a report
unless a test sets `replays`: then of each report.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from poisonguard.server.http_client import Client
from poisonguard.testing.fake_poisonweb_api import Double
from poisonguard.testing.fake_server_skip_list import Json

__all__ = ["KEY", "FakeServer", "Json", "be_patient", "running"]

KEY = "pw_test_key"


class FakeServer(Double):
    def __init__(self) -> None:
        super().__init__()
        self.key = KEY
        self.replays = False
        self.reports.trusts = lambda _: True
        self.reports.shares = self._shares
        self.start()

    @property
    def is_up(self) -> bool:
        return self._http is not None

    def _shares(self, report: Json) -> bool:
        return self.replays and not report.get("suspected")


def be_patient(patch: pytest.MonkeyPatch) -> None:
    """Let clients wait for an answer: on a busy machine one may take five seconds."""
    defaults = Client.__init__.__kwdefaults__
    assert defaults is not None
    patch.setitem(defaults, "timeout", 60.0)


@contextmanager
def running() -> Iterator[FakeServer]:
    server = FakeServer()
    try:
        yield server
    finally:
        server.faults.thaw()
        server.stop()
