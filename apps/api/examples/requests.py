"""Examples of requests, which can be sent as they are where their topic is known.

Of a request that is one thing or another, there is one of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from apps.api.examples.shared_values import (
    AT,
    CONSUMER,
    DELIVERY_ID,
    HEADER,
    KIND,
    LATER,
    PREVIEWED,
    RAMP,
    REPORT,
    SHA_256,
    Examples,
    Value,
    only,
)

FAILURE: Final[Value] = {
    **CONSUMER,
    "report_id": REPORT,
    "sub_id": "1",
    "bookmark": "1763630999000-0",
    "publisher": "shop",
    "seq": 4711,
    "message_id": "order-13",
    "body": "eyJpZCI6IDEzfQ==",
    "content_type": "application/json",
    "headers": [["trace", "MDAtMTM="]],
    "cause": "exhausted",
    "exception": {"type": "ValueError", "message": "no price", "traceback": ""},
    "attempts": 3,
    "failures": 3,
    "crashes": 0,
    "dequeue_count": 3,
    "first_failed_at": AT,
    "failed_at": LATER,
    "handler_version": "2026.11.20",
    "host": "web-3",
    "redrive": HEADER,
    "replays": False,
    "suspected": False,
    "suspect": True,
}
TOO_LARGE: Final[Value] = {
    **{name: each for name, each in FAILURE.items() if name != "body"},
    "oversize_body": {"size": 300_000_000, "sha256": SHA_256},
}
CONFIRMATION: Final[Value] = {**CONSUMER, "redrive": HEADER, "at": LATER}
COUNTER: Final[Value] = {
    **CONSUMER,
    "reporter": REPORT,
    "sequence": 1,
    "minute": AT,
    "handled": 10,
    "failed": 2,
    "skipped": 1,
    "retried": 3,
    "duration_ms_hist": {"3": 7, "5": 5},
}
GUARD: Final[Value] = {
    **CONSUMER,
    "reporter": REPORT,
    "host": "web-3",
    "version": "1.0.0",
    "handler_version": "2026.11.20",
    "state": "paused",
    "detail": "7 of the last 10 messages failed",
    "skips_age_s": 0.5,
    "spooled": 0,
    "suspected": 1,
    "journal": True,
    "failing_since": AT,
    "at": LATER,
}
UPDATE: Final[Value] = {
    "client_name": "billing-1",
    "sub_id": "1",
    "topic": "orders",
    "epoch": 2,
    "publisher": "shop",
    "received": 4711,
    "settled": [[0, 4700], [4702, 4711]],
    "persisted": 4690,
    "bookmark": "1763630999000-0",
}
HOLDER: Final[Value] = {
    "client_name": "billing-1",
    "sub_id": "1",
    "topic": "orders",
    "replays": True,
}
APPLIED: Final[Value] = {
    "skip": 5,
    "consumer_group": "billing",
    "client_name": "billing-1",
    "count": 1,
    "last_at": LATER,
    "report": REPORT,
    "handled": False,
}
NAMED: Final[Value] = {
    "name": "invoices",
    "broker": "ours",
    "native_name": "shop.invoices",
    "dead_letter_queue": "invoices-dead",
}
QUEUE: Final[Value] = {"dead_letter_queue": "orders-dead"}
POLICIES: Final[Value] = {
    **QUEUE,
    "max_dequeue_count": 5,
    "visibility_timeout": 60.0,
    "retention_days": 14,
    "requeue_to": "invoices-later",
    "owner": "team shop",
    "runbook": "https://wiki.example.org/orders",
    "options": {"body_field": "body"},
}
LANE: Final[Value] = {"mode": "tee", "tee_queue": "orders-copies", "paused": False}
SKIP: Final[Value] = {
    "topic": "orders",
    "consumer_group": "billing",
    "matcher": {"kind": "bookmark", "value": "1763630999000-0"},
    "handler_version": "2026.11.20",
    "expires_at": "2099-11-21T09:30:00Z",
    "reason": "it has no price",
    "poison": 13,
}

ENDPOINT_SETTINGS: Final[Value] = {
    "target": "https://stock.example.com:8443/services",
    "is_enabled": True,
    "mode": "sync-then-retry",
    "paths": ["/SimpleStockQuoteService*"],
    "retries": 10,
    "interval": 3.0,
    "backoff": "exponential",
    "jitter": "equal",
    "longest_interval": 3_600.0,
    "expiry": 604_800.0,
    "respects_retry_after": True,
    "attempt_timeout": 10.0,
    "claim_timeout": 20.0,
    "client_timeout": 20.0,
    "failure_statuses": "408, 425, 429, 500-599",
    "repeatable": "by-method",
    "at_end": "triage",
    "forward_topic": "",
    "forward_endpoint": "",
    "concurrency": 10,
    "rate": 50.0,
    "breaker_failures": 5,
    "breaker_interval": 10.0,
    "order_header": "x-customer",
    "response_hook": "",
}
OUTBOX_SETTINGS: Final[Value] = {
    "schema": "shop",
    "is_paused": False,
    "broker": "events",
    "window": 500,
    "most_lag": 10_000,
    "most_depth": 100_000,
    "sent_rows_days": 7,
    "sent_ids_days": 30,
}
OUTBOX_URL: Final = "postgresql://sweeper:secret@db.example.com/shop?sslmode=require"
DELIVERIES: Final[Value] = {
    "ids": [DELIVERY_ID],
    "reason": "the back end works again",
}

REQUESTS: Final[Mapping[str, Examples]] = {
    "FailureReports": {
        "a message": {"failures": [FAILURE]},
        "a message that is too large": {"failures": [TOO_LARGE]},
    },
    "Confirmations": only({"confirmations": [CONFIRMATION]}),
    "CounterReports": only({"counters": [COUNTER], "guards": [GUARD]}),
    "Ask": {
        "by a query": {
            "verb": "redrive",
            "q": "topic:orders is:open",
            "target_topic": "orders",
            "ordered": True,
        },
        "by ids": {"verb": "drop", "ids": [13]},
        "slowly, in growing steps": {
            "verb": "redrive",
            "q": "topic:orders is:open",
            "rate": 50,
            "ramp": RAMP,
        },
        "deliveries of an endpoint, slowly": {
            "verb": "try_now",
            "deliveries": {
                "endpoint": "stock-quote",
                "state": "waiting",
                "cause": "exhausted",
                "since": "2026-11-20",
                "until": "2026-11-21T09:30:00Z",
                "due": "2099-11-21T09:30:00Z",
            },
            "rate": 20,
        },
        "back to its dead-letter queue": {
            "verb": "give_back",
            "q": "topic:orders is:open",
            "target_topic": "orders",
        },
    },
    "Decision": only({"token": PREVIEWED, "reason": "mended"}),
    "Control": only({"reason": "the consumers are being deployed"}),
    "ResumeOptions": only(
        {"reason": "billing 2.3.1 is deployed", "without_ramp": False}
    ),
    "RateChange": only({"rate": 50, "reason": "the database is busy"}),
    "Retry": only({"standings": ["refused", "recurred", "silent"]}),
    "NewSkip": only({**SKIP, "everything": False}),
    "Unskip": only({"reason": "the price is known now"}),
    "AppliedReports": only({"applied": [APPLIED]}),
    "NewBroker": only(
        {
            "name": "warehouse",
            "kind": KIND,
            "url": "env:BROKER_OURS",
            "options": {},
        }
    ),
    "BrokerChange": only(
        {"name": "ours", "url": "env:BROKER_OURS", "options": {}},
    ),
    "BrokerRemoval": only({"reason": "switched off"}),
    "NewTopic": {
        "a topic": {**POLICIES, **NAMED, "reason": "ours now"},
        "a topic with a lane": {**NAMED, **LANE, "reason": "ours now"},
        "a topic of requests": {
            **NAMED,
            "dead_letter_queue": "shop.invoices",
            "request_endpoints": ["stock-*"],
            "mode": "capture",
            "reason": "it feeds the endpoint",
        },
    },
    "TopicChange": {
        "its policies": {"name": "orders", **POLICIES, "reason": "more time"},
        "its lane": {"name": "orders", **QUEUE, **LANE, "reason": "ours now"},
        "requests": {
            "name": "orders",
            "dead_letter_queue": "orders",
            "request_endpoints": ["stock-*"],
            "mode": "capture",
            "reason": "it feeds the endpoint",
        },
    },
    "TopicRemoval": only({"name": "orders", "reason": "switched off"}),
    "NewEndpoint": {
        "as in the article": {
            "name": "quotes",
            "preset": "article",
            "target": "https://stock.example.com:8443/services",
            "reason": "new",
        },
        "with all settings": {"name": "quotes", **ENDPOINT_SETTINGS},
        "that forwards to a topic": {
            "name": "quotes",
            "target": "https://stock.example.com:8443/services",
            "at_end": "forward",
            "forward_topic": "orders",
            "response_hook": "stock-quote",
        },
        "that forwards to another endpoint": {
            "name": "quotes",
            "target": "https://stock.example.com:8443/services",
            "at_end": "forward",
            "forward_endpoint": "stock-quote",
        },
    },
    "EndpointChange": {
        "all settings": {**ENDPOINT_SETTINGS, "version": 1, "reason": "more time"},
        "only some": {"is_enabled": False, "reason": "under repair"},
    },
    "EndpointRemoval": only({"reason": "switched off"}),
    "NewOutbox": only(
        {"name": "shop", "url": OUTBOX_URL, **OUTBOX_SETTINGS, "reason": "new"}
    ),
    "OutboxChange": {
        "all settings": {
            "url": OUTBOX_URL,
            **OUTBOX_SETTINGS,
            "version": 1,
            "reason": "another broker",
        },
        "only some": {"is_paused": True, "reason": "a bad release"},
    },
    "OutboxRemoval": only({"reason": "switched off"}),
    "RowDecision": only({"reason": "the later one is right"}),
    "DeliveryDecision": only(DELIVERIES),
    "GiveUpDecision": only({**DELIVERIES, "reason": "sold out"}),
    "Holder": only(HOLDER),
    "PositionUpdates": only({"updates": [UPDATE]}),
    "MoveAsk": {
        "to a number": {
            "to": {"shop": 4000},
            "reason": "a bad release",
            "fence": True,
            "dry_run": True,
        },
        "to a time": {"at": AT, "reason": "a bad release"},
        "by a distance": {"by": -100, "reason": "a bad release"},
        "where another is": {"other": 4, "reason": "a bad release"},
        "back to where it was": {"move": 6, "reason": "a mistake"},
    },
}
