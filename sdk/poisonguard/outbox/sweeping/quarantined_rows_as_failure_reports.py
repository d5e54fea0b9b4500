"""Report quarantined rows to Poisonweb, as failures of the outbox's own consumer."""

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
from poisonguard.outbox.sweeping.quarantine_report_text_and_cause import (
    EXCEPTION_TYPE,
    report_text,
)
from poisonguard.outbox.sweeping.row_quarantine_and_report import (
    QuarantinedRow,
    ReportAnswer,
)
from poisonguard.server.http_client import Client
from poisonguard.server.report_request_and_answers import Sender


class PoisonwebReports:
    """Post each row as a failure of consumer group `outbox`, the outbox's name.

    A row whose topic is no name, or is missing, is reported under that of the outbox.
    """

    def __init__(self, client: Client, *, outbox: str) -> None:
        self._sender = Sender(client)
        self._outbox = outbox
        host = socket.gethostname()
        self._host = host if is_name(host) else None

    def report(self, rows: Sequence[QuarantinedRow]) -> list[ReportAnswer]:
        answers = self._sender.send_failures(
            [failure_of(row, outbox=self._outbox, host=self._host) for row in rows]
        )
        return [
            ReportAnswer(is_accepted=True)
            if answer["status"] != "rejected"
            else _rejection(answer)
            for answer in answers
        ]


def failure_of(
    row: QuarantinedRow, *, outbox: str, host: str | None = None
) -> FailureReport:
    """Build a failure report of an outbox row, by the outbox's own consumer.

    The report id is that of the row and its reason. A body of more than 16 MiB is left
    out.
    """
    identity = f"{outbox}:{row.row_id}:{row.reason}"
    too_large = row.body_digest and OversizeBody(
        size=row.body_size, sha256=row.body_digest
    )
    return FailureReport(
        report_id=uuid5(NAMESPACE_OID, identity),
        topic=row.topic if is_name(row.topic) else outbox,
        consumer_group=outbox,
        client_name=row.producer if is_name(row.producer) else outbox,
        bookmark=f"{outbox}:{row.row_id}",
        message_id=row.message_id or None,
        body=b"" if too_large else row.body,
        oversize_body=too_large or None,
        headers=row.headers[:HEADERS_LIMIT],
        cause=row.cause,
        exception=Raised(
            type=EXCEPTION_TYPE,
            message=report_text(
                reason=row.reason, row_id=row.row_id, writer=str(row.writer)
            ),
        ),
        attempts=row.attempts,
        failures=1,
        crashes=0,
        first_failed_at=row.quarantined_at,
        failed_at=row.quarantined_at,
        host=host,
        suspect=False,
    )


def _rejection(answer: Mapping[str, object]) -> ReportAnswer:
    """Translate the server's rejection of a row's report into a `ReportAnswer`.

    A body that the server does not take stays in the table, and is noted there.
    """
    is_noted = answer.get("pointer") == "/body"
    return ReportAnswer(is_accepted=is_noted, detail=str(answer.get("detail", "")))
