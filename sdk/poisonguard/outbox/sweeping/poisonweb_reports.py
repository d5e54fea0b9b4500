"""Reports quarantined rows to Poisonweb, as failures of the outbox's own consumer."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from uuid import NAMESPACE_OID, uuid5

from poisonguard.contract import (
    HEADERS_LIMIT,
    FailureReport,
    OversizeBody,
    Raised,
    is_name,
)
from poisonguard.outbox.sweeping.quarantine import QuarantinedRow, ReportAnswer
from poisonguard.server.http_client import Client
from poisonguard.server.report_batch_sender import Sender

EXCEPTION_TYPE = "QuarantinedOutboxRow"


class PoisonwebReports:
    """Posts each row as a failure of consumer group `outbox`, the outbox's name.

    A row whose topic is no name, or is missing, is reported under that of the outbox.
    """

    def __init__(self, client: Client, *, outbox: str) -> None:
        self._sender = Sender(client)
        self._outbox = outbox
        self._host = socket.gethostname()

    def report(self, rows: Sequence[QuarantinedRow]) -> list[ReportAnswer]:
        answers = self._sender.send_failures([self._failure(row) for row in rows])
        return [
            ReportAnswer(is_accepted=True)
            if answer["status"] != "rejected"
            else _rejection(answer)
            for answer in answers
        ]

    def _failure(self, row: QuarantinedRow) -> FailureReport:
        identity = f"{self._outbox}:{row.row_id}:{row.reason}"
        too_large = row.body_digest and OversizeBody(
            size=row.body_size, sha256=row.body_digest
        )
        return FailureReport(
            report_id=uuid5(NAMESPACE_OID, identity),
            topic=row.topic if is_name(row.topic) else self._outbox,
            consumer_group=self._outbox,
            client_name=row.producer if is_name(row.producer) else self._outbox,
            bookmark=f"{self._outbox}:{row.row_id}",
            message_id=row.message_id or None,
            body=b"" if too_large else row.body,
            oversize_body=too_large or None,
            headers=row.headers[:HEADERS_LIMIT],
            cause=row.cause,
            exception=Raised(
                type=EXCEPTION_TYPE,
                message=f"{row.reason}. Row {row.row_id}, written by: {row.writer}",
            ),
            attempts=row.attempts,
            failures=1,
            crashes=0,
            first_failed_at=row.quarantined_at,
            failed_at=row.quarantined_at,
            host=self._host if is_name(self._host) else None,
            suspect=False,
        )


def _rejection(answer: Mapping[str, object]) -> ReportAnswer:
    """Return the answer to a rejected report.

    A body that the server does not take stays in the table, and is noted there.
    """
    is_noted = answer.get("pointer") == "/body"
    return ReportAnswer(is_accepted=is_noted, detail=str(answer.get("detail", "")))
