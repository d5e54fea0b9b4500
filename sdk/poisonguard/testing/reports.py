"""What consumers reported, kept as the server does: each report once."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

from poisonguard.contract import (
    Invalid,
    parse_confirmation,
    parse_counter,
    parse_failure,
    parse_heartbeat,
)
from poisonguard.testing.fake_server_skip_list import FakeSkipList, Json, now

SKIP_LASTS = timedelta(days=30)


class Reports:
    """The reports, and the poisons and skips that they make.

    `rejects` gives the detail of a report that is rejected, `shares` says which make a
    skip, `trusts` which marks of a requeued message are genuine.
    """

    def __init__(self, skip_list: FakeSkipList) -> None:
        self._skip_list = skip_list
        self.failures: dict[str, Json] = {}  # by report id, as they came first
        self.confirmations: dict[str, Json] = {}  # by redrive
        self.counters: dict[tuple[str, int], Json] = {}  # by reporter and sequence
        self.guards: dict[str, Json] = {}  # by client name, the newest heartbeat
        self.applied: Counter[int] = Counter()  # by skip
        self.arrivals: Counter[str] = Counter()  # of each report id, however often
        self._redrives: set[str] = set()  # marks of what was requeued
        self.rejects: Callable[[Json], str | None] = lambda _: None
        self.shares: Callable[[Json], bool] = _replays_for_sure
        self.trusts: Callable[[str], bool] = self._redrives.__contains__
        self._applied_reports: set[str] = set()
        self._poisons: dict[tuple[str, str, str], int] = {}
        self._poison_by_report: dict[str, int] = {}
        self._first_by_poison: dict[int, Json] = {}  # the report that made it
        self._cleared: set[str] = set()  # reports that are suspected no more

    # What a test asks

    def totals(self) -> Counter[str]:
        """Return the sums of the counters that guards reported to the fake server."""
        names = ("handled", "failed", "skipped", "retried")
        counters = list(self.counters.values())
        return Counter({name: sum(item[name] for item in counters) for name in names})

    def new_redrive_header(self) -> str:
        """Create a requeued message's redrive header that the fake server trusts."""
        redrive = f"{uuid.uuid4()}.{uuid.uuid4().hex}"
        self._redrives.add(redrive)
        return redrive

    # What consumers send and read

    def fail(self, item: Json) -> Json:
        if "body" not in item and "oversize_body" in item:
            return {"status": "rejected", "detail": "noted", "pointer": "/body"}
        parse_failure(item)
        detail = self.rejects(item)
        if detail is not None:
            return {"status": "rejected", "detail": detail}
        report_id = item["report_id"]
        self.arrivals[report_id] += 1
        first = self.failures.setdefault(report_id, item)
        is_cleared = first.get("suspected") and not item.get("suspected")
        if report_id in self._poison_by_report and (
            not is_cleared or report_id in self._cleared
        ):
            return {"status": "duplicate", "poison": self._poison_by_report[report_id]}
        if is_cleared:
            self._cleared.add(report_id)
        return self._capture(item)

    def _capture(self, item: Json) -> Json:
        message = (item["topic"], item["consumer_group"], item["bookmark"])
        is_new = message not in self._poisons
        poison = self._poisons.setdefault(message, len(self._poisons) + 1)
        self._first_by_poison.setdefault(poison, item)
        self._poison_by_report[item["report_id"]] = poison
        if self.shares(item):
            self._skip_list.add(
                kind="bookmark",
                value=item["bookmark"],
                topic=item["topic"],
                consumer_group=item["consumer_group"],
                handler_version=item.get("handler_version"),
                expires_at=(now() + SKIP_LASTS).isoformat(),
                by="system:capture",
                poison=poison,
            )
        return {"status": "created" if is_new else "updated", "poison": poison}

    def confirm(self, item: Json) -> Json:
        redrive = parse_confirmation(item).redrive
        if not self.trusts(redrive):
            raise Invalid("/redrive", "nothing was requeued under this mark.")
        self.confirmations[redrive] = item
        return {"status": "confirmed"}

    def count(self, item: Json) -> Json:
        parse_counter(item)
        key = (item["reporter"], item["sequence"])
        is_duplicate = key in self.counters
        self.counters.setdefault(key, item)
        return {"status": "duplicate" if is_duplicate else "counted"}

    def note_guard(self, item: Json) -> Json:
        parse_heartbeat(item)
        before = self.guards.get(item["client_name"])
        if before is not None and item["at"] < before["at"]:
            return {"status": "duplicate"}
        self.guards[item["client_name"]] = item
        return {"status": "updated" if before else "created"}

    def apply(self, item: Json) -> Json:
        if not self._skip_list.has_had(item["skip"]):
            raise Invalid("/skip", "there is no such skip.")
        if item["report"] not in self._applied_reports:
            self._applied_reports.add(item["report"])
            self.applied[item["skip"]] += item["count"]
        return {"status": "ok"}

    def detail(self, poison: int) -> Json:
        report = self._first_by_poison[poison]
        digest = hashlib.sha256(self.body(poison)).hexdigest()
        names = [name for name, _ in report["headers"]]
        return {**report, "digest": digest, "header_names": names}

    def body(self, poison: int) -> bytes:
        return base64.b64decode(self._first_by_poison[poison]["body"])


def _replays_for_sure(report: Json) -> bool:
    return bool(report.get("replays")) and not report.get("suspected")
