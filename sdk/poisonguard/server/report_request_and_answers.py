"""Send reports of one kind in one request, and read the answer to each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poisonguard.contract import FailureReport
from poisonguard.errors import Away, Refused
from poisonguard.server.http_client import Client
from poisonguard.server.oversize_body_omission import (
    Oversize,
    explain_rejection,
    without_body,
)
from poisonguard.server.spool import Item
from poisonguard.version import VERSION

_SHOWN = 100  # characters of an unknown status
# The content is wrong, not the sender.
_OF_CONTENT = {400, 413, 422}
_TOO_LARGE = 413
_PATHS = {"applied": "/skips/applied"}
# The answers to each kind of report: all but `rejected` mean that the server has it. An
# unknown status of a newer server may mean either.
_STATUSES = {
    "failures": ("created", "updated", "duplicate", "rejected"),
    "confirmations": ("confirmed", "duplicate", "rejected"),
    "counters": ("counted", "duplicate", "rejected"),
    "applied": ("ok", "rejected"),
}


class Sender:
    """Send reports; leave out the bodies that the server is known to refuse."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._oversize = Oversize()

    @property
    def warning(self) -> str | None:
        """Describe messages too large to report, which stay with their broker.

        For a guard's health; None without any.
        """
        return self._oversize.warning

    def send_failures(self, reports: Sequence[FailureReport]) -> list[Item]:
        """Send failure reports whole if they fit; return the answers in their order."""
        answers = self.send("failures", [self._to_wire(report) for report in reports])
        for report, answer in zip(reports, answers, strict=True):
            self._oversize.learn_from(report, answer)
        return answers

    def send(
        self, kind: str, items: Sequence[Item], beside: Item | None = None
    ) -> list[Item]:
        """Send reports of one kind to the server; return the answers in their order."""
        body = {kind: list(items), **(beside or {})}
        try:
            answer = self._client.post(_PATHS.get(kind, f"/{kind}"), body)
        except Refused as refused:
            if refused.status not in _OF_CONTENT:
                raise
            if len(items) > 1:
                return [self.send(kind, [item])[0] for item in items]
            if refused.status == _TOO_LARGE and "body" in items[0]:
                return self.send(kind, [without_body(items[0])])
            return [{"status": "rejected", "detail": str(refused)} for _ in items]
        answers = _results(answer, expected=len(items))
        return [
            explain_rejection(item, one)
            if "oversize_body" in item
            else _reject_unknown_status(kind, one)
            for item, one in zip(items, answers, strict=True)
        ]

    def _to_wire(self, report: FailureReport) -> Item:
        """Return a failure report's wire form, without a body that is too large."""
        if not self._oversize.fits(len(report.body)):
            report = report.without_body()
        return report.to_wire()


def _reject_unknown_status(kind: str, answer: Item) -> Item:
    """Return a report's answer, or a rejection where its status is unknown."""
    if answer["status"] in _STATUSES[kind]:
        return answer
    status = str(answer["status"])[:_SHOWN]
    detail = (
        f"the server answers {status!r}, which poisonguard {VERSION} does not know:"
        " install a version of the server's age"
    )
    return {"status": "rejected", "detail": detail}


def _results(answer: Any, *, expected: int) -> list[Item]:
    """Return each report's result; raise Away unless there is one for each."""
    results = answer.get("results") if isinstance(answer, Mapping) else None
    if (
        not isinstance(results, list)
        or len(results) != expected
        or not all(isinstance(one, Mapping) and "status" in one for one in results)
    ):
        raise Away("The server's answer has another form than ours.")
    return results
