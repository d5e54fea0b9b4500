"""Check how a server takes failures, confirmations and counters."""

from __future__ import annotations

import hashlib
from http import HTTPStatus

from poisonguard_conformance.raw_http_client import Json, Violated
from poisonguard_conformance.server_check_and_played_consumer import (
    GROUP,
    Consumer,
    check,
    expect,
    minute,
    moment,
    new_id,
    statuses,
)

BODY = bytes(range(256)) + b"\xed\xa0\x80 \r\n\0"
# Twice one name, one that is no UTF-8, one in capitals; lone surrogates are its bytes.
HEADERS = (
    ("x-conformance", b"\0\xff"),
    ("x-conformance", b""),
    ("X-Capitals", b"kept"),
    ("broken-\udcff", b"\xed\xa0\x80"),
)
HOSTILE = {
    "message_id": "\0\udfff",
    "content_type": "text/\0",
    "redrive": f"{'x' * 1_000}",
    "exception": {"type": "\0\ud800<script>", "message": "\x1b[2J", "traceback": "\0"},
}
MOST_MEMBERS = 1_000


@check(
    "failure-once",
    "A report is answered `created`; the same `report_id` again is a `duplicate` of the"
    " same poison, and another report of the same message an `updated` of it.",
)
def failure_once(consumer: Consumer) -> None:
    """Check that a Poisonweb server counts a repeated report once."""
    member = consumer.failure()
    again = {**member, "report_id": new_id()}
    results = [
        result for each in (member, member, again) for result in consumer.report(each)
    ]

    expect("the three answers", statuses(results), ["created", "duplicate", "updated"])
    expect("the poisons", len({result.get("poison") for result in results}), 1)


@check(
    "failure-once-in-a-batch",
    "Members of one request are answered in their order, and a copy within the request"
    " counts no more than one in the next.",
)
def failure_once_in_a_batch(consumer: Consumer) -> None:
    """Check that a Poisonweb server counts a report twice in one request once."""
    first, other = consumer.failure(), consumer.failure()
    results = consumer.report(first, other, first)

    expect("the answers", statuses(results), ["created", "created", "duplicate"])
    expect("the poison of the copy", results[2].get("poison"), results[0].get("poison"))


@check(
    "failure-rejected",
    "A bad member is `rejected` with a JSON pointer and a detail, and sinks no other.",
)
def failure_rejected(consumer: Consumer) -> None:
    """Check that a Poisonweb server rejects a bad report, and takes the others."""
    bad = consumer.failure(failed_at="yesterday")
    first, rejected, last = consumer.report(consumer.failure(), bad, consumer.failure())

    expect("the others", statuses([first, last]), ["created", "created"])
    expect("the bad one", rejected.get("status"), "rejected")
    expect("its pointer", rejected.get("pointer"), "/failed_at")
    expect("that it has a detail", bool(rejected.get("detail")), expected=True)


@check(
    "unknown-members",
    "Members that the server does not know are ignored, whatever they hold.",
)
def unknown_members(consumer: Consumer) -> None:
    """Check that a Poisonweb server ignores members that it does not know."""
    deep = {"conformance": [[[{"deep": None}]]]}
    results = consumer.report(consumer.failure(**deep))

    expect("the answer", statuses(results), ["created"])


@check(
    "body",
    "The body comes back byte for byte, and its digest is its SHA-256.",
)
def body(consumer: Consumer) -> None:
    """Check that a Poisonweb server returns a message's body unchanged.

    The digest that the server gives is the body's SHA-256.
    """
    [result] = consumer.report(consumer.failure(body=BODY))
    poison = consumer.wire.get(f"/poisons/{result['poison']}").json_of_success
    answer = consumer.wire.get(f"/poisons/{result['poison']}/body")

    expect("the digest", poison.get("digest"), hashlib.sha256(BODY).hexdigest())
    expect("the status of the download", answer.status, HTTPStatus.OK)
    expect("the bytes", answer.body, BODY)


@check(
    "hostile-message",
    "Whatever a message brings along, it is captured; its headers keep their order,"
    " their case and their copies.",
)
def hostile_message(consumer: Consumer) -> None:
    """Check that a Poisonweb server captures a message of broken text and headers."""
    bookmark = f"\0\ud800\u202e{new_id()}"
    member = consumer.failure(bookmark=bookmark, headers=HEADERS, **HOSTILE)
    [result] = consumer.report(member)
    expect("the answer", result.get("status"), "created")

    names = consumer.wire.get(f"/poisons/{result['poison']}").json_of_success.get(
        "header_names"
    )
    if not isinstance(names, list):
        raise Violated("the detail of a poison has no list of header_names")
    readable = [name for name, _ in HEADERS[:3]]
    expect("the readable names", names[:3], readable)
    expect("the number of headers", len(names), len(HEADERS))


@check(
    "confirmation-forged",
    "A confirmation whose signature does not hold is `rejected` at `/redrive`, each for"
    " itself, and the request is answered 200.",
)
def confirmation_forged(consumer: Consumer) -> None:
    """Check that a Poisonweb server rejects each of several forged confirmations."""
    forged = [f"{new_id()}.{'A' * 43}", "no redrive at all"]
    results = consumer.batch(
        "/confirmations", "confirmations", *(_confirmation(consumer, f) for f in forged)
    )

    expect("the answers", statuses(results), ["rejected", "rejected"])
    expect(
        "the pointers", [t.get("pointer") for t in results], ["/redrive", "/redrive"]
    )


@check(
    "counter-once",
    "A (reporter, sequence) is `counted` once, within a request and ever after.",
)
def counter_once(consumer: Consumer) -> None:
    """Check that a Poisonweb server counts each counter report once."""
    first = _counter(consumer)
    second = {**first, "sequence": 2}
    within = consumer.batch("/counters", "counters", first, first)
    after = consumer.batch("/counters", "counters", first, second)

    expect("within a request", statuses(within), ["counted", "duplicate"])
    expect("in the next", statuses(after), ["duplicate", "counted"])


@check(
    "counter-rejected",
    "A counter that does not name the first moment of a minute is `rejected` at"
    " `/minute`, and sinks no other.",
)
def counter_rejected(consumer: Consumer) -> None:
    """Check that a Poisonweb server rejects a counter of no whole minute."""
    bad = _counter(consumer, minute=minute().replace(":00+", ":13+"))
    results = consumer.batch("/counters", "counters", bad, _counter(consumer))

    expect("the answers", statuses(results), ["rejected", "counted"])
    expect("its pointer", results[0].get("pointer"), "/minute")


@check(
    "guard-newest",
    "The newest heartbeat of a guard is kept: `created`, `updated`, and `duplicate` for"
    " one that came late.",
)
def guard_newest(consumer: Consumer) -> None:
    """Check that a Poisonweb server keeps a guard's newest heartbeat."""
    first = _heartbeat(consumer)
    heartbeats = [first, {**first, "at": moment(seconds=1)}, first]
    answers = [_report_heartbeat(consumer, heartbeat) for heartbeat in heartbeats]

    expect("the answers", answers, ["created", "updated", "duplicate"])


@check(
    "gzip",
    "A request may be compressed with gzip.",
)
def gzip(consumer: Consumer) -> None:
    """Check that a Poisonweb server takes a gzipped request."""
    member = consumer.failure(body=b"x" * 100_000)
    results = consumer.wire.post_gzip(
        "/failures", {"failures": [member]}
    ).json_of_success["results"]

    expect("the answer", statuses(results), ["created"])


@check(
    "idempotency-key",
    "A POST with the `Idempotency-Key` of one before acts once: the same request gets"
    " the same answer with `Idempotent-Replayed: true`, another one is refused (422).",
)
def idempotency_key(consumer: Consumer) -> None:
    """Check that a Poisonweb server acts once per idempotency key.

    It repeats its answer to a repeated request.
    """
    key, whole = new_id(), {"failures": [consumer.failure()]}
    first = consumer.wire.post("/failures", whole, Idempotency_Key=key)
    again = consumer.wire.post("/failures", whole, Idempotency_Key=key)
    other = {"failures": [consumer.failure()]}

    expect("the first answer", statuses(first.json_of_success["results"]), ["created"])
    expect("the second answer", again.json_of_success, first.json_of_success)
    expect("Idempotent-Replayed", again.headers.get("idempotent-replayed"), "true")
    reused = consumer.wire.post("/failures", other, Idempotency_Key=key)
    reused.problem_of_refusal(HTTPStatus.UNPROCESSABLE_ENTITY)


@check(
    "no-json",
    "A request that cannot be read is answered 400 as `application/problem+json`.",
)
def no_json(consumer: Consumer) -> None:
    """Check that a Poisonweb server answers 400 to an unreadable request.

    The answer is a problem document.
    """
    for broken in (b'{"failures": [', b"[]", b'{"failures": 13}'):
        consumer.wire.post("/failures", broken).problem_of_refusal(
            HTTPStatus.BAD_REQUEST
        )


@check(
    "too-many",
    "More than 1,000 members in a request are answered 413, and none is taken.",
)
def too_many(consumer: Consumer) -> None:
    """Check that a Poisonweb server takes 1,000 members in a request, but not 1,001."""
    members: list[Json] = [{}] * (MOST_MEMBERS + 1)
    whole = {"failures": members}
    refused = consumer.wire.post("/failures", whole)

    refused.problem_of_refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    at_limit = consumer.batch("/failures", "failures", *members[1:])
    expect("1,000 empty members", {*statuses(at_limit)}, {"rejected"})


@check(
    "wrong-key",
    "A key that is not known is answered 401 with `WWW-Authenticate: Bearer`.",
)
def wrong_key(consumer: Consumer) -> None:
    """Check that a Poisonweb server answers 401 to an unknown API key."""
    headers = {"Authorization": "Bearer pw_conformance_nobody_made_this"}
    answer = consumer.wire.send("POST", "/failures", b'{"failures": []}', headers)

    answer.problem_of_refusal(HTTPStatus.UNAUTHORIZED)
    expect("WWW-Authenticate", answer.headers.get("www-authenticate"), "Bearer")


CHECKS = (
    failure_once,
    failure_once_in_a_batch,
    failure_rejected,
    unknown_members,
    body,
    hostile_message,
    confirmation_forged,
    counter_once,
    counter_rejected,
    guard_newest,
    gzip,
    idempotency_key,
    no_json,
    too_many,
    wrong_key,
)


def _confirmation(consumer: Consumer, redrive: str) -> Json:
    """Build a conformance check's confirmation of a redrive for POST /confirmations."""
    return {
        "redrive": redrive,
        "topic": consumer.topic,
        "consumer_group": GROUP,
        "client_name": consumer.client_name,
        "at": moment(),
    }


def _counter(consumer: Consumer, **changes: object) -> Json:
    """Build a conformance check's counter report, one member of POST /counters."""
    member = {
        "reporter": new_id(),
        "sequence": 1,
        "topic": consumer.topic,
        "consumer_group": GROUP,
        "client_name": consumer.client_name,
        "minute": minute(),
        "handled": 1,
        "failed": 0,
        "skipped": 0,
        "retried": 0,
        "duration_ms_hist": {"0": 1},
    }
    return {**member, **changes}


def _heartbeat(consumer: Consumer) -> Json:
    """Build a conformance check's heartbeat of a guard, for POST /counters."""
    return {
        "reporter": new_id(),
        "topic": consumer.topic,
        "consumer_group": GROUP,
        "client_name": consumer.client_name,
        "state": "stopping",
        "detail": "conformance",
        "skips_age_s": None,
        "spooled": 0,
        "suspected": 0,
        "journal": False,
        "at": moment(),
    }


def _report_heartbeat(consumer: Consumer, heartbeat: Json) -> object:
    """Post a played guard's heartbeat; return what the checked server did with it.

    That is a status such as `created`. Raise Violated without one answer for it.
    """
    answer = consumer.wire.post(
        "/counters", {"counters": [], "guards": [heartbeat]}
    ).json_of_success
    guards = answer.get("guards")
    if not isinstance(guards, list) or len(guards) != 1:
        raise Violated("one member of `guards` did not get one answer in `guards`")
    return guards[0].get("status")
