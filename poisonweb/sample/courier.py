"""Carries confirmations and counters to Poisonweb, until they are taken.

Confirmations are read from the ledger, behind a place that is kept in a file and moves
on only when what lies before it was taken. Killed in between, some are sent twice,
which does no harm. Counters live in memory: a kill loses a minute of them.
"""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta
from pathlib import Path

from poisonguard.contract import Confirmation, CounterReport
from poisonweb.sample.api import TIMEOUT_SECONDS, Api, Undelivered
from poisonweb.sample.back_off import BackOff
from poisonweb.sample.counters import Counters, this_minute
from poisonweb.sample.ledger import Ledger, Line, What
from poisonweb.sample.subscriptions import BY_TOPIC

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
BATCH = 100
LAST_TRY_SECONDS = 1.0
MINUTE = timedelta(minutes=1)


class Courier:
    def __init__(
        self, api: Api, ledger: Ledger, counters: Counters, *, stop: threading.Event
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._counters = counters
        self._stop = stop
        self._place = Place(ledger.path.with_suffix(".place"))
        self._unsent: list[CounterReport] = []

    def run(self) -> None:
        back_off = BackOff(self._stop)
        while not self._stop.is_set():
            try:
                self._bring_confirmations()
                self._bring_counters(before=this_minute())
                back_off.reset()
                self._stop.wait(POLL_SECONDS)
            except Undelivered as trouble:
                log.warning("the courier waits for Poisonweb: %s", trouble)
                back_off.wait()
        self._bring_what_was_counted_last()

    def _bring_confirmations(self) -> None:
        while not self._stop.is_set():
            start = self._place.read(self._ledger.path)
            handled, end = next_handled(self._ledger.path, start)
            if handled:
                members = [_confirmation(line).to_wire() for line in handled]
                _complain(self._api.post("confirmations", members))
            self._place.move(end, durably=bool(handled))
            if len(handled) < BATCH:
                return

    def _bring_counters(
        self, *, before: datetime, seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._unsent += self._counters.take(before=before)
        while self._unsent:
            members = [report.to_wire() for report in self._unsent[:BATCH]]
            _complain(self._api.post("counters", members, seconds=seconds))
            del self._unsent[:BATCH]

    def _bring_what_was_counted_last(self) -> None:
        try:
            self._bring_counters(
                before=this_minute() + MINUTE, seconds=LAST_TRY_SECONDS
            )
        except Undelivered as trouble:
            log.warning("the last counters are lost: %s", trouble)


class Place:
    """How far into the ledger all is confirmed, in bytes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._now = int(path.read_text(encoding="ascii")) if path.exists() else 0

    def read(self, ledger: Path) -> int:
        # A place behind the end is that of another ledger, which somebody removed.
        return self._now if self._now <= ledger.stat().st_size else 0

    def move(self, place: int, *, durably: bool) -> None:
        """Go there; what was passed without a confirmation may be passed again."""
        self._now = place
        if durably:
            draft = self._path.with_suffix(".draft")
            draft.write_text(str(place), encoding="ascii")
            draft.replace(self._path)


def next_handled(ledger: Path, start: int) -> tuple[list[Line], int]:
    """Return the next redriven messages that were handled, and where they end."""
    handled: list[Line] = []
    place = start
    with ledger.open("rb") as file:
        file.seek(start)
        for text in file:
            # The last line may still be on its way into the file.
            if len(handled) == BATCH or not text.endswith(b"\n"):
                break
            place += len(text)
            line = Line.parse(text)
            if line.what is What.HANDLED and line.redrive:
                handled.append(line)
    return handled, place


def _confirmation(line: Line) -> Confirmation:
    subscription = BY_TOPIC[line.topic]
    return Confirmation(
        redrive=line.redrive,
        topic=line.topic,
        consumer_group=subscription.consumer_group,
        client_name=subscription.client_name,
        at=line.at,
    )


def _complain(rejections: list[str]) -> None:
    for detail in rejections:
        log.warning("Poisonweb rejects a report: %s", detail)
