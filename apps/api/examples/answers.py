"""Examples of answers, of the same messages as those of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from apps.api.examples.requests import (
    ENDPOINT_SETTINGS,
    LANE,
    OUTBOX_SETTINGS,
    POLICIES,
    SKIP,
)
from apps.api.examples.shared_values import (
    AT,
    DELIVERY_ID,
    KIND,
    LATER,
    PREVIEWED,
    REDRIVE,
    REPORT,
    SHA_256,
    Examples,
    Value,
    only,
)

COUNTS: Final[Value] = {
    "failures": 3,
    "attempts": 3,
    "crashes": 0,
    "redrives": 1,
    "recurrences": 0,
}
POISON: Final[Value] = {
    "id": 13,
    "topic": "orders",
    "consumer_group": "billing",
    "problem": 7,
    "message_id": "order-13",
    "state": "open",
    "shown": "open",
    "silent": False,
    "suspected": False,
    "moved_to": None,
    "given_back": False,
    "cause": "exhausted",
    "error_type": "ValueError",
    "error_message": "no price",
    "size": 10,
    "digest": SHA_256,
    "reuse": 0,
    "counts": COUNTS,
    "first_failed_at": AT,
    "last_failed_at": LATER,
    "captured_at": LATER,
    "sent_at": None,
    "dropped_at": None,
}
OPERATION: Final[Value] = {
    "id": 4,
    "items": "poison",
    "verb": "redrive",
    "state": "done",
    "actor": "user:anna",
    "source": "ui",
    "q": "topic:orders is:open",
    "target_topic": None,
    "ordered": False,
    "undo_of": None,
    "reason": "mended",
    "total": 1,
    "items_judged": 1,
    "rate_limit": None,
    "ramp": None,
    "paused_because": "",
    "trouble": "",
    "retry_at": None,
    "as_of": AT,
    "confirmed_at": AT,
    "finished_at": LATER,
    "acknowledged": None,
}
ENTRY: Final[Value] = {
    "seq": 27,
    "at": AT,
    "actor": "user:anna",
    "source": "ui",
    "action": "operation.confirmed",
    "subject": "operation:4",
    "reason": "mended",
    "detail": {"verb": "redrive", "total": 1},
    "hash": SHA_256,
}
PROBLEM: Final[Value] = {
    "id": 7,
    "topic": "orders",
    "consumer_group": "billing",
    "title": "ValueError",
    "summary": "no price",
    "fingerprint": SHA_256,
    "version": 1,
    "total": 1,
    "counts": {"open": 1, "sent": 0, "handled": 0, "dropped": 0},
    "first_seen": AT,
    "last_seen": LATER,
}
PREVIEW: Final[Value] = {
    "token": PREVIEWED,
    "items": "poison",
    "verb": "redrive",
    "q": "topic:orders is:open",
    "target_topic": None,
    "ordered": False,
    "rate": None,
    "ramp": None,
    "as_of": AT,
    "expires_at": "2026-11-20T09:45:00Z",
    "taken": True,
    "total": 2,
    "will_act": 1,
    "newer": 0,
    "skipped": [{"reason": "already dropped", "count": 1}],
    "breakdown": {
        "topics": [{"name": "orders", "count": 1}],
        "consumer_groups": [{"name": "billing", "count": 1}],
        "other_topics": 0,
        "other_consumer_groups": 0,
    },
    "endpoints": [],
    "left_out": [],
    "skipped_again": {
        "count": 1,
        "looked_at": 1,
        "unread": 0,
        "skips": [
            {"id": 12, "topic": "orders-later", "handler_version": None, "count": 1}
        ],
    },
    "redirects": [{"topic": "orders", "to": "orders-later"}],
    "elsewhere": [],
    "without_sender": [],
    "sample": [POISON],
}
CAPABILITIES: Final[Value] = {
    "max_message": 134_217_728,
    "counts_headers": False,
    "headers": "bytes",
    "most_headers": None,
    "ordering": "topic",
    "dedupe_window": 0.0,
    "durability": "page cache",
    "delay": 0.0,
    "polling_interval": 0.0,
    "peeks": False,
    "extends": False,
    "counting": "broker",
    "dead_letters_itself": True,
    "delivered": True,
    "reserved": ["x-death"],
}
BROKER: Final[Value] = {
    "id": 1,
    "name": "ours",
    "kind": KIND,
    "address": "env:BROKER_OURS",
    "options": {},
    "sample": False,
    "topics": 1,
    "capabilities": CAPABILITIES,
}
TOPIC: Final[Value] = {
    "id": 2,
    "name": "orders",
    "broker": "ours",
    "native_name": "shop.orders",
    **POLICIES,
    "request_endpoints": [],
    "oversize": 0,
    "lane": {
        **LANE,
        "state": "running",
        "heard": True,
        "detail": "",
        "seen_at": LATER,
        "depth": 0,
        "oldest_at": None,
        "captured": 13,
        "rate": 0.5,
        "held": 0,
        "error": "",
        "error_at": None,
    },
}
LISTED_SKIP: Final[Value] = {
    **SKIP,
    "id": 5,
    "redrive": None,
    "by": "user:anna",
    "at": AT,
}
POSITION: Final[Value] = {
    "id": 3,
    "source": "sdk",
    "topic": "orders",
    "consumer_group": "",
    "client_name": "billing-1",
    "sub_id": "1",
    "epoch": 2,
    "observed_at": AT,
    "moved_at": AT,
    "marks": [
        {
            "publisher": "shop",
            "processed": 4700,
            "bookmark": "1763630999000-0",
            "received": 4711,
            "persisted": 4690,
            "ahead": 1,
            "head": None,
            "lag": None,
            "pending": None,
            "settled_at": LATER,
        }
    ],
}
RATE: Final[Value] = {
    "day": "2026-11-20",
    "hour": None,
    "topic": "orders",
    "sample": False,
    "consumer_group": None,
    "source": "sdk",
    "delivered": 200,
    "failed": 2,
    "uncounted": 0,
    "poisoned": 1,
    "skipped": 0,
    "retried": 3,
    "redriven": 1,
    "confirmed": 1,
    "recurred": 0,
    "dropped": 0,
    "failure_rate": 0.01,
    "interval": {"low": 0.0027, "high": 0.0357},
    "p50_ms": 16,
    "p95_ms": 512,
    "p99_ms": 1024,
    "run": 9,
}
ENDPOINT_DAY: Final[Value] = {
    "day": "2026-11-20",
    "endpoint": "stock-quote",
    "topic": "gateway/stock-quote",
    "calls": 1030,
    "succeeded_at_first": 990,
    "after_1": 5,
    "after_2": 1,
    "after_3": 0,
    "after_4_to_10": 2,
    "after_more": 0,
    "given_up": 1,
    "dropped": 0,
    "forwarded": 0,
    "unknown": 1,
    "waiting": 0,
    "timed": 8,
    "p50_ms": 3012,
    "p95_ms": 15230,
    "longest_ms": 15230,
    "is_partial": False,
    "run": 9,
}
RUN: Final[Value] = {
    "id": 9,
    "state": "done",
    "from": "2026-11-20",
    "to": "2026-11-20",
    "asked_by": "system:nightly",
    "asked_at": "2026-11-21T01:00:00Z",
    "started_at": "2026-11-21T01:00:01Z",
    "as_of": "2026-11-21T01:00:01Z",
    "finished_at": "2026-11-21T01:00:10Z",
    "seconds": 9.0,
    "rows_in": 215,
    "late_rows": 0,
    "trouble": "",
}


FAILURE: Final[Value] = {
    "report_id": REPORT,
    "problem": 7,
    "redrive": None,
    "suspected": False,
    "cause": "exhausted",
    "error_type": "ValueError",
    "error_message": "no price",
    "traceback": "",
    "cut": False,
    "client_name": "billing-1",
    "sub_id": "1",
    "host": "web-3",
    "handler_version": "2026.11.20",
    "attempts": 3,
    "failures": 3,
    "crashes": 0,
    "dequeue_count": 3,
    "first_failed_at": AT,
    "failed_at": LATER,
    "failed_at_claimed": None,
    "captured_at": LATER,
    "times": 1,
    "last_failed_at": None,
}
SENT: Final[Value] = {
    "id": REDRIVE,
    "n": 1,
    "topic": "orders",
    "operation": 4,
    "queue": None,
    "outcome": "confirmed",
    "detail": "",
    "bookmark": "1763631111000-0",
    "copies": 1,
    "claimed_at": LATER,
    "sent_at": LATER,
    "answered_at": LATER,
}
STEP: Final[Value] = {
    "publisher": "shop",
    "before": 4700,
    "after": 4000,
    "replayed": 711,
    "passed_over": 0,
    "beyond": False,
    "poison_replayed": [13],
    "poison_passed_over": [],
}
MARK: Final[Value] = {
    "position": 3,
    "sub_id": "1",
    "topic": "orders",
    "publisher": "shop",
    "processed": 4700,
    "persisted": 4690,
    "received": 4711,
    "settled": [[4702, 4711]],
    "resume": 4690,
    "bookmark": "1763630999000-0",
}
# As a reader of the stream gets it.
EVENT: Final = (
    'id: 6d1f.12\nevent: unskip\ndata: {"id": 5, "topic": "orders", "revision": 12}\n\n'
)


def _list_of(row: Value) -> Examples:
    ends = {"next": None, "next_url": None, "previous_url": None}
    return only({"results": [row], **ends})


ENDPOINT: Final[Value] = {
    "id": 1,
    "name": "stock-quote",
    "topic": "gateway/stock-quote",
    "fed_by": ["quote-requests"],
    "version": 1,
    "created_at": AT,
    "created_by": "user:anna",
    "breaker": {
        "state": "closed",
        "failures_in_a_row": 0,
        "opened_at": None,
        "next_probe": None,
    },
    "backlog": {
        "waiting": 1,
        "trying": 0,
        "forwarding": 0,
        "oldest": AT,
        "next_due": LATER,
    },
    "calls": {
        "succeeded_at_first": 990,
        "succeeded_later": 5,
        "failed": 5,
        "given_up": 0,
        "success_share": 0.995,
    },
    **ENDPOINT_SETTINGS,
}
OUTBOX: Final[Value] = {
    "id": 13,
    "name": "shop",
    "topic": "outbox/shop",
    "address": "kept, sealed",
    "version": 1,
    "created_at": AT,
    "created_by": "user:anna",
    "activity": {
        "state": "slowed",
        "detail": "orders: consumer billing is 12,000 messages behind",
        "noted_at": AT,
        "counted_at": AT,
        "waiting": 17,
        "waiting_bytes": 4_096,
        "oldest_at": AT,
        "quarantined": 1,
        "sent_count": 120_000,
        "duplicate_count": 1,
        "sent_per_second": 55.0,
        "slowed": {"orders": "consumer billing is 12,000 messages behind"},
        "flood_rows": 1,
        "flood_writer": "user shop, application repair script, address 10.0.0.7",
    },
    "sweeper_errors": [
        {
            "step": "publish",
            "kind": "Away",
            "count": 3,
            "first_at": AT,
            "last_at": AT,
            "message": "events: connection refused",
            "first_stack": "Traceback (most recent call last): ...",
        }
    ],
    **OUTBOX_SETTINGS,
}
TABLE_FINDING: Final[Value] = {
    "kind": "missing unique index",
    "detail": "poisonguard_outbox has no unique index of producer and message_id",
    "remedy": "make the index, so that no id comes twice",
    "sql": "CREATE UNIQUE INDEX CONCURRENTLY poisonguard_outbox_one_message ...;",
    "doubled_ids": 0,
    "is_blocking": False,
}
OUTBOX_ROW: Final[Value] = {
    "row_id": 4711,
    "state": "quarantined",
    "producer": "shop",
    "message_id": "order-13",
    "topic": "orders",
    "key": "customer-7",
    "size": 10,
    "attempts": 0,
    "created_at": AT,
    "due_at": AT,
    "sent_at": None,
    "duplicate_of": None,
    "quarantined_at": AT,
    "cause": "rejected",
    "reason": "two messages under one id: rows 4711 and 4712",
    "writer_user": "shop",
    "writer_application": "repair script",
    "writer_address": "10.0.0.7",
    "writer_transaction": "90210",
    "written_at": AT,
}
DELIVERY: Final[Value] = {
    "id": DELIVERY_ID,
    "endpoint": "stock-quote",
    "state": "waiting",
    "method": "POST",
    "path": "/SimpleStockQuoteService",
    "size": 10,
    "caller": "key:shop",
    "idempotency_key": "order-13",
    "repeatable": True,
    "retry_count": 1,
    "attempts": 1,
    "accepted_at": AT,
    "expires_at": None,
    "due_at": LATER,
    "last_status": 503,
    "last_error": "HTTP 503",
    "cause": None,
    "finished_at": None,
    "poison": None,
}
ATTEMPT: Final[Value] = {
    "number": 1,
    "outcome": "failed",
    "begun_at": AT,
    "ended_at": AT,
    "status": 503,
    "detail": "HTTP 503",
    "late_at": None,
    "late_status": None,
}
ANSWERS: Final[Mapping[str, Examples]] = {
    "Answers": {
        "taken": {"results": [{"status": "created", "poison": 13}]},
        "rejected": {
            "results": [
                {
                    "status": "rejected",
                    "detail": "topic is missing: send it.",
                    "pointer": "/topic",
                }
            ]
        },
    },
    "CounterAnswers": only(
        {"results": [{"status": "counted"}], "guards": [{"status": "counted"}]}
    ),
    "Poisons": _list_of(POISON),
    "PoisonDetail": only(
        {
            **POISON,
            "bookmark": "1763630999000-0",
            "header_names": ["trace"],
            "failures": [FAILURE],
            "redrives": [SENT],
            "operations": [OPERATION],
            "audit": [ENTRY],
        }
    ),
    "PoisonProblems": _list_of(PROBLEM),
    "PoisonProblem": only(PROBLEM),
    "Preview": only(PREVIEW),
    "Accepted": only({"id": 4}),
    "Operations": _list_of(OPERATION),
    "OperationRow": only({**OPERATION, "state": "paused", "finished_at": None}),
    "OperationItems": only(
        {
            "results": [
                {
                    "number": 0,
                    "poison": 13,
                    "delivery": None,
                    "topic": "orders",
                    "standing": "confirmed",
                    "explanation": "",
                    "sent_at": AT,
                    "answered_at": LATER,
                }
            ],
            "next": None,
        }
    ),
    "OperationDetail": only(
        {
            **OPERATION,
            "counts": {
                **dict.fromkeys(("waiting", "sending", "sent", "recurred"), 0),
                **dict.fromkeys(("refused", "skipped", "unknown", "dropped"), 0),
                **dict.fromkeys(("restored", "moved", "due", "given_up"), 0),
                "confirmed": 1,
            },
            "acts_on": 1,
            "acted": 1,
            "given_back_to": None,
            "silent": 0,
            "refused": [],
            "skipped": [],
            "rate": 1.0,
            "eta": None,
        }
    ),
    "Entries": _list_of(ENTRY),
    "Verdict": only(
        {"entries": 27, "ok": True, "first_bad": None, "head": SHA_256, "troubles": []}
    ),
    "Brokers": _list_of(BROKER),
    "Broker": only(BROKER),
    "AddedBroker": only(BROKER),
    "Reached": only({"ok": True, "detail": "it answers", "milliseconds": 3}),
    "FoundTopics": only(
        {
            "results": [
                {
                    "native_name": "shop.invoices",
                    "depth": 0,
                    "dead_letter_queue": "invoices-dead",
                    "dead_letters": 13,
                    "name": None,
                }
            ]
        }
    ),
    "Topics": _list_of(TOPIC),
    "Topic": only(TOPIC),
    "RegisteredTopic": only(TOPIC),
    "Skips": only(
        {
            "epoch": "6d1f",
            "revision": 11,
            "skips": [LISTED_SKIP],
            "suspects": [
                {**LISTED_SKIP, "id": 6, "message_id": "order-14", "seq": 4712}
            ],
        }
    ),
    "Skip": only(LISTED_SKIP),
    "AddedSkip": only(
        {
            **LISTED_SKIP,
            "renews": {
                "by": "system:capture",
                "at": AT,
                "expires_at": LATER,
                "reason": "exhausted: KeyError",
                "handler_version": "2026.11.20",
                "poison": 13,
                "automatic": True,
            },
        }
    ),
    "AppliedAnswers": only({"results": [{"status": "ok"}]}),
    "STR": only(EVENT),
    "Endpoints": _list_of(ENDPOINT),
    "Endpoint": only(ENDPOINT),
    "AddedEndpoint": only(ENDPOINT),
    "Outboxes": _list_of(OUTBOX),
    "Outbox": only(OUTBOX),
    "AddedOutbox": only(OUTBOX),
    "OutboxRows": only({"results": [OUTBOX_ROW], "next_before": 4711}),
    "OutboxRow": only(OUTBOX_ROW),
    "TableFindings": only({"findings": [TABLE_FINDING]}),
    "Deliveries": _list_of(DELIVERY),
    "DeliveryDetail": only(
        {
            **DELIVERY,
            "header_names": ["SOAPAction"],
            "attempt_list": [ATTEMPT],
            "audit": [],
        }
    ),
    "DecisionResult": only({"total": 1, "acted_on": 1}),
    "Positions": _list_of(POSITION),
    "Opened": only({"epoch": 2, "positions": [MARK]}),
    "PositionAnswers": {
        "settled": {"results": [{"status": "ok"}]},
        "taken over by another": {
            "results": [{"status": "fenced", "detail": "another holder has opened it"}]
        },
    },
    "MoveDone": only(
        {
            "id": 6,
            "position": 3,
            "epoch": 3,
            "held": False,
            "whole": True,
            "steps": [STEP],
        }
    ),
    "FailureRates": _list_of(RATE),
    "EndpointDays": _list_of(ENDPOINT_DAY),
    "ReportRuns": _list_of(RUN),
}
