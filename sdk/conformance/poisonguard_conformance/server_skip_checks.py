"""Check a server's skip list: snapshots, the stream, and skips made by reports."""

from __future__ import annotations

import hashlib
from datetime import datetime
from http import HTTPStatus

from poisonguard_conformance.raw_http_client import (
    EventStream,
    Json,
    StreamEvent,
    Violated,
)
from poisonguard_conformance.server_check_and_played_consumer import (
    GROUP,
    Consumer,
    check,
    expect,
    moment,
    new_id,
    statuses,
)

# When, and after how many seconds at most.
PINGS = (("at the start", 0.0), ("after 15 seconds", 15.0))
FOREIGN_EPOCH = "00000000-conformance-no-epoch-of-yours"
FAR_AHEAD = 10**12
DIGEST = hashlib.sha256(b"conformance").hexdigest()
POINTER = "/conformance/a~1b/0"
MATCHERS: tuple[tuple[str, object], ...] = (
    ("bookmark", "conformance-\0-\ud800-é-1|2|"),
    ("message_id", "conformance \U0001f4a5"),
    ("body_digest", DIGEST),
    ("rule", {"header": "x-conformance", "equals": 'yes, "exactly"'}),
    ("rule", {"pointer": POINTER, "equals": "text"}),
    ("rule", {"pointer": POINTER, "equals": 1.5}),
    ("rule", {"pointer": POINTER, "equals": True}),
    ("rule", {"pointer": POINTER, "equals": None}),
)
REFUSED: tuple[tuple[str, object], ...] = (
    ("conformance", "no such kind"),
    ("body_digest", "no digest"),
    ("rule", {"header": "x", "pointer": "/x", "equals": "x"}),
    ("rule", {"pointer": "no pointer", "equals": 1}),
    ("rule", {"pointer": POINTER, "equals": [1]}),
    ("rule", "no object"),
)


@check(
    "skip-told-at-once",
    "A new skip is an event `skip` on the stream within a second, with the id"
    " `<epoch>.<revision>`; it is in the snapshot of that revision; removed, it is an"
    " event `unskip` and is in the snapshot no more.",
)
def skip_told_at_once(consumer: Consumer) -> None:
    """Check that a Poisonweb server streams a skip's start and end within a second."""
    with consumer.following() as stream:
        skip = consumer.add_skip(kind="bookmark", value=new_id())
        addition = consumer.event(stream, "skip", skip["id"])
        snapshot = consumer.snapshot()
        consumer.remove_skip(skip["id"])
        removal = consumer.event(stream, "unskip", skip["id"])

    _expect_place(addition, snapshot["epoch"])
    expected = _without_revision(addition.data)
    expect("the skip in the snapshot", _with_id(snapshot, skip["id"]), [expected])
    _expect_place(removal, snapshot["epoch"])
    expect("why it ended", removal.data.get("because"), "removed")
    expect("the skip once it is removed", _with_id(consumer.snapshot(), skip["id"]), [])


@check(
    "skip-matchers",
    "Each kind of matcher comes back as it was sent: text with every character in it, a"
    " digest in hexadecimal, a rule as an object with a header or a pointer.",
)
def skip_matchers(consumer: Consumer) -> None:
    """Check that a Poisonweb server returns each kind of matcher as it was sent."""
    for kind, value in MATCHERS:
        skip = consumer.add_skip(kind=kind, value=value)
        [entry] = _with_id(consumer.snapshot(), skip["id"]) or [{}]
        expect(f"a {kind}", entry.get("matcher"), {"kind": kind, "value": value})
        consumer.remove_skip(skip["id"])


@check(
    "skip-refused",
    "A matcher that cannot be used is refused (422) with a pointer.",
)
def skip_refused(consumer: Consumer) -> None:
    """Check that a Poisonweb server refuses matchers that cannot be used."""
    for kind, value in REFUSED:
        request = consumer.skip(kind=kind, value=value)
        answer = consumer.wire.post("/skips", request)
        if answer.status == HTTPStatus.CREATED:
            consumer.skips.append(answer.json["id"])
        problem = answer.problem_of_refusal(HTTPStatus.UNPROCESSABLE_ENTITY)
        pointers = [str(error.get("pointer")) for error in problem.get("errors", [])]
        expect("its pointer", [p.startswith("/matcher") for p in pointers], [True])


@check(
    "skip-groups",
    "Who names its consumer group hears of its own skips and of those for all groups,"
    " and of no others.",
)
def skip_groups(consumer: Consumer) -> None:
    """Check that a Poisonweb server tells a consumer group only of the skips for it."""
    with consumer.following(consumer_group=GROUP) as stream:
        groups = ("conformance-other", GROUP, None)
        others, own, common = (
            consumer.add_skip(kind="bookmark", value=new_id(), consumer_group=group)[
                "id"
            ]
            for group in groups
        )
        heard = _read_skip_ids(stream, last=common, within=2 * consumer.event_timeout)
        snapshot = consumer.snapshot(consumer_group=GROUP)
        every = consumer.snapshot()

    expect("what the stream told", heard, [own, common])
    expect("the others' in the snapshot of a group", _with_id(snapshot, others), [])
    counts = [
        len(_with_id(snapshot, own)),
        len(_with_id(snapshot, common)),
        len(_with_id(every, others)),
    ]
    expect("those in the snapshots", counts, [1, 1, 1])


@check(
    "stream-resumes",
    "With `Last-Event-ID` of the last event, or `after`, the stream tells every change"
    " since, in order and once.",
)
def stream_resumes(consumer: Consumer) -> None:
    """Check that a Poisonweb server's skip stream resumes without gap or copy.

    It resumes after the place in `Last-Event-ID` or `after`.
    """
    with consumer.following() as stream:
        before = consumer.add_skip(kind="bookmark", value=new_id())
        place = consumer.event(stream, "skip", before["id"]).id
    missed = [
        consumer.add_skip(kind="bookmark", value=new_id())["id"] for _ in range(3)
    ]
    with consumer.stream(last_event_id=place, after=_place_too_far(place)) as stream:
        by_header = _read_skip_ids(
            stream, last=missed[-1], within=2 * consumer.event_timeout
        )
    with consumer.stream(after=place) as stream:
        by_query = _read_skip_ids(
            stream, last=missed[-1], within=2 * consumer.event_timeout
        )

    expect("what came after Last-Event-ID", by_header, missed)
    expect("what came after `after`", by_query, missed)


@check(
    "stream-of-several-topics",
    "One stream carries several topics; its ids hold a revision of each, in the order"
    " asked for, and it resumes each of them where it was.",
)
def stream_of_several_topics(consumer: Consumer) -> None:
    """Check that a skip stream of Poisonweb carries and resumes several topics."""
    topics = (f"{consumer.topic}-b", consumer.topic)
    with consumer.following(*topics) as stream:
        first = consumer.add_skip(kind="bookmark", value=new_id())
        place = consumer.event(stream, "skip", first["id"]).id
    expect("the revisions in its id", len(_revisions(place)), len(topics))

    missed = [
        consumer.add_skip(kind="bookmark", value=new_id(), topic=topic)["id"]
        for topic in topics
    ]
    with consumer.stream(*topics, last_event_id=place) as stream:
        heard = _read_skip_ids(
            stream, last=None, within=consumer.event_timeout, most=len(missed)
        )
    expect("what came of both", set(heard), set(missed))
    expect("how much came", len(heard), len(missed))


@check(
    "stream-resets",
    "A place of another epoch, or beyond the head, is answered with the event `reset`,"
    " and the stream ends.",
)
def stream_resets(consumer: Consumer) -> None:
    """Check that a Poisonweb server resets a skip stream from an impossible place.

    The stream ends then.
    """
    skip = consumer.add_skip(kind="bookmark", value=new_id())
    epoch = consumer.snapshot()["epoch"]
    for place in (f"{FOREIGN_EPOCH}.{skip['id']}", f"{epoch}.{FAR_AHEAD}"):
        with consumer.stream(last_event_id=place) as stream:
            reset = next(stream.until("reset", within=2 * consumer.event_timeout), None)
            expect(f"a reset at {place}", reset is not None, expected=True)
            has_ended = stream.ends(within=2 * consumer.event_timeout)
            expect("that the stream ends after it", has_ended, expected=True)


@check(
    "stream-pings",
    "A `ping` with the id of its place comes at the start, and whenever nothing was"
    " told for 15 seconds.",
)
def stream_pings(consumer: Consumer) -> None:
    """Check that a Poisonweb server's skip stream pings at once, then each 15 s."""
    epoch = consumer.snapshot()["epoch"]
    with consumer.stream() as stream:
        for when, within in PINGS:
            pings = stream.until("ping", within=within + consumer.event_timeout)
            ping = next(pings, None)
            if ping is None:
                raise Violated(f"no ping came {when}")
            _expect_place(ping, epoch)


@check(
    "skip-applied",
    "What was passed over is counted back: `ok`, once for each `report`; a skip that"
    " does not exist is `rejected`, for itself.",
)
def skip_applied(consumer: Consumer) -> None:
    """Check that a Poisonweb server accepts counts of applied skips."""
    skip = consumer.add_skip(kind="bookmark", value=new_id())
    count = {
        "skip": skip["id"],
        "consumer_group": GROUP,
        "client_name": consumer.client_name,
        "count": 2,
        "last_at": moment(),
        "report": new_id(),
    }
    unknown = {**count, "skip": 2**53, "report": new_id()}
    first = consumer.batch("/skips/applied", "applied", count, unknown)
    again = consumer.batch("/skips/applied", "applied", count)

    expect("the answers", statuses(first), ["ok", "rejected"])
    expect("the answer to a repetition", statuses(again), ["ok"])


@check(
    "skip-expires",
    "A skip bears its `expires_at`, after which a consumer ends it by itself; a time"
    " that is past is refused (422).",
)
def skip_expires(consumer: Consumer) -> None:
    """Check that a Poisonweb server gives a skip its expiry, and refuses a past one."""
    until = moment(seconds=3_600)
    skip = consumer.add_skip(kind="bookmark", value=new_id(), expires_at=until)
    [entry] = _with_id(consumer.snapshot(), skip["id"])
    request = consumer.skip(
        kind="bookmark", value=new_id(), expires_at=moment(seconds=-1)
    )
    answer = consumer.wire.post("/skips", request)

    expires_at = datetime.fromisoformat(str(entry.get("expires_at")))
    expect("when it expires", expires_at, datetime.fromisoformat(until))
    answer.problem_of_refusal(HTTPStatus.UNPROCESSABLE_ENTITY)


@check(
    "skip-of-a-report",
    "A report with `replays: true` makes a skip of its bookmark for its consumer group,"
    " which expires.",
)
def skip_of_a_report(consumer: Consumer) -> None:
    """Check that a Poisonweb server makes a skip of a replaying topic's report."""
    topic = f"{consumer.topic}-replays"
    member = consumer.failure(topic=topic, replays=True)
    with consumer.following(topic, consumer_group=GROUP) as stream:
        [result] = consumer.report(member)
        skip = _wait_for_skip_of(consumer, stream, topic, result)
    matcher = {"kind": "bookmark", "value": member["bookmark"]}

    expect("its matcher", skip.get("matcher"), matcher)
    expect("its consumer group", skip.get("consumer_group"), GROUP)
    expect("that it expires", bool(skip.get("expires_at")), expected=True)


@check(
    "suspected-is-not-shared",
    "A report with `suspected: true` is kept and makes no skip; the same report again"
    " without it is `updated` and makes it.",
)
def suspected_is_not_shared(consumer: Consumer) -> None:
    """Check that a Poisonweb server makes no skip of a suspected report."""
    topic = f"{consumer.topic}-replays"
    member = consumer.failure(topic=topic, replays=True, suspected=True)
    with consumer.following(topic, consumer_group=GROUP) as stream:
        [suspected] = consumer.report(member)
        expect("the answer to the suspected", suspected.get("status"), "created")
        expect("the skips it makes", _skips_made_by(consumer, topic, suspected), [])

        [cleared] = consumer.report({**member, "suspected": False})
        expect("the answer to the cleared", cleared.get("status"), "updated")
        _wait_for_skip_of(consumer, stream, topic, cleared)


CHECKS = (
    skip_told_at_once,
    skip_matchers,
    skip_refused,
    skip_groups,
    skip_expires,
    skip_applied,
    skip_of_a_report,
    suspected_is_not_shared,
    stream_resumes,
    stream_of_several_topics,
    stream_resets,
    stream_pings,
)


def _with_id(snapshot: Json, number: object) -> list[Json]:
    """Return the skips with this id in a snapshot of the skip list, at most one."""
    return [skip for skip in snapshot["skips"] if skip.get("id") == number]


def _without_revision(data: Json) -> Json:
    """Return the data of a checked server's skip event as a snapshot holds a skip."""
    return {name: value for name, value in data.items() if name != "revision"}


def _revisions(place: str) -> list[int]:
    """Return the revisions in the checked server's event id, one for each topic."""
    return [int(number) for number in place.rpartition(".")[2].split(",")]


def _place_too_far(place: str) -> str:
    """Return a place of this epoch at which no skip stream can resume."""
    return f"{place.rpartition('.')[0]}.{FAR_AHEAD}"


def _expect_place(event: StreamEvent, epoch: str) -> None:
    """Raise Violated unless the event's id from the checked server holds its epoch.

    The id must hold the revision in the event's data, too, if there is one.
    """
    event_epoch, _, revision = event.id.rpartition(".")
    expect(f"the epoch in the id of a {event.kind}", event_epoch, epoch)
    if "revision" in event.data:
        expect("the revision in it", revision, str(event.data["revision"]))


def _read_skip_ids(
    stream: EventStream, *, last: object, within: float, most: int | None = None
) -> list[object]:
    """Read the checked server's skip stream until one skip, or so many, came.

    Stop at a time-out, too. Return the ids of the skips, and "reset" for a reset.
    """
    heard: list[object] = []
    for event in stream.until("skip", "reset", within=within):
        heard.append(event.data.get("id", event.kind))
        if heard[-1] == last or len(heard) == most:
            break
    return heard


def _wait_for_skip_of(
    consumer: Consumer, stream: EventStream, topic: str, result: Json
) -> Json:
    """Wait for the skip that the checked server made of a failure report.

    Return it, or raise Violated at the time-out. It is removed when the check ends.
    """
    events = stream.until("skip", within=consumer.event_timeout)
    of_it = (e.data for e in events if e.data.get("poison") == result.get("poison"))
    skip = next(of_it, None)
    skip_ids = _skips_made_by(consumer, topic, result)
    if skip is None:
        raise Violated(f"no skip was told; in the snapshot there are {skip_ids}")
    return skip


def _skips_made_by(consumer: Consumer, topic: str, result: Json) -> list[int]:
    """Return the ids of skips that the checked server made of a failure report.

    They are removed when the check ends.
    """
    snapshot = consumer.snapshot(topic=topic)
    skip_ids = [s["id"] for s in snapshot["skips"] if s["poison"] == result["poison"]]
    consumer.skips += skip_ids
    return skip_ids
