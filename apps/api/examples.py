"""Examples of bodies, by the name of the serializer that describes them.

Those of a request can be sent as they are, where its topic and broker are known. Of a
request that is one thing or another, there is one of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from apps.brokers.adapters import KINDS

Value = Mapping[str, object]

AT: Final = "2026-11-20T09:30:00Z"
LATER: Final = "2026-11-20T09:31:00Z"
REPORT: Final = "5b0a8b8e-6f0d-4c55-9c55-2d7a1a1f0a11"
REDRIVE: Final = "0d7a8a52-3f25-4b43-8a10-7c3f0b4a9d5e"
PREVIEWED: Final = "2f1c9a64-8a3b-4d5e-9f60-1b2c3d4e5f60"
SHA_256: Final = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
HEADER: Final = f"{REDRIVE}.Zm9yIGFuIGV4YW1wbGU"
# Only an adapter knows the name of its kind.
KIND: Final = next(iter(KINDS))
CONSUMER: Final[Value] = {
    "topic": "orders",
    "consumer_group": "billing",
    "client_name": "billing-1",
}

# Requests.
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
OVERSIZE: Final[Value] = {
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
    "name": "orders",
    "broker": "ours",
    "native_name": "shop.orders",
}
QUEUE: Final[Value] = {"dead_letter_queue": "orders-dead"}
POLICIES: Final[Value] = {
    **QUEUE,
    "max_dequeue_count": 5,
    "visibility_timeout": 60.0,
    "retention_days": 14,
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

# Answers.
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
    "trouble": "",
    "retry_at": None,
    "as_of": AT,
    "confirmed_at": AT,
    "finished_at": LATER,
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
    "verb": "redrive",
    "q": "topic:orders is:open",
    "target_topic": None,
    "ordered": False,
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
    },
    "left_out": [],
    "elsewhere": [],
    "sample": [POISON],
}
CAPABILITIES: Final[Value] = {
    "max_message": 134_217_728,
    "counts_headers": False,
    "headers": "bytes",
    "most_headers": None,
    "ordering": "topic",
    "dedupe_window": 0.0,
    "durability": "page_cache",
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


def _only(value: Value) -> dict[str, Value]:
    return {"example": value}


def _list_of(row: Value) -> dict[str, Value]:
    ends = {"next": None, "next_url": None, "previous_url": None}
    return _only({"results": [row], **ends})


EXAMPLES: Final[Mapping[str, Mapping[str, Value]]] = {
    "FailureReports": {
        "a message": {"failures": [FAILURE]},
        "a message that is too large": {"failures": [OVERSIZE]},
    },
    "Confirmations": _only({"confirmations": [CONFIRMATION]}),
    "CounterReports": _only({"counters": [COUNTER], "guards": [GUARD]}),
    "Ask": {
        "by a query": {
            "verb": "redrive",
            "q": "topic:orders is:open",
            "target_topic": "orders",
            "ordered": True,
        },
        "by ids": {"verb": "drop", "ids": [13]},
    },
    "Decision": _only({"token": PREVIEWED, "reason": "mended"}),
    "NewSkip": _only({**SKIP, "everything": False}),
    "Unskip": _only({"reason": "the price is known now"}),
    "AppliedReports": _only({"applied": [APPLIED]}),
    "NewBroker": _only(
        {
            "name": "ours",
            "kind": KIND,
            "url": "env:BROKER_OURS",
            "options": {},
        }
    ),
    "BrokerChange": _only(
        {"name": "ours", "url": "env:BROKER_OURS", "options": {}},
    ),
    "BrokerRemoval": _only({"reason": "switched off"}),
    "NewTopic": {
        "a topic": {**NAMED, **POLICIES, "reason": "ours now"},
        "a topic with a lane": {**NAMED, **QUEUE, **LANE, "reason": "ours now"},
    },
    "TopicChange": {
        "its policies": {"name": "orders", **POLICIES, "reason": "more time"},
        "its lane": {"name": "orders", **QUEUE, **LANE, "reason": "ours now"},
    },
    "TopicRemoval": _only({"name": "orders", "reason": "switched off"}),
    "Holder": _only(HOLDER),
    "PositionUpdates": _only({"updates": [UPDATE]}),
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
