"""The skip list: a snapshot, the stream of its changes, and what comes of a report."""

from __future__ import annotations

import hashlib
from datetime import datetime
from http import HTTPStatus

from poisonguard_conformance.check import (
    GROUP,
    Consumer,
    check,
    expect,
    moment,
    new_id,
    statuses,
)
from poisonguard_conformance.wire import Json, Stream, Told, Violated

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
    with consumer.following() as stream:
        made = consumer.add_skip(kind="bookmark", value=new_id())
        told = consumer.event(stream, "skip", made["id"])
        kept = consumer.snapshot()
        consumer.remove_skip(made["id"])
        ended = consumer.event(stream, "unskip", made["id"])

    _expect_place(told, kept["epoch"])
    wanted = _without_revision(told.data)
    expect("the skip in the snapshot", _of(kept, made["id"]), [wanted])
    _expect_place(ended, kept["epoch"])
    expect("why it ended", ended.data.get("because"), "removed")
    expect("the skip once it is removed", _of(consumer.snapshot(), made["id"]), [])


@check(
    "skip-matchers",
    "Each kind of matcher comes back as it was sent: text with every character in it, a"
    " digest in hexadecimal, a rule as an object with a header or a pointer.",
)
def skip_matchers(consumer: Consumer) -> None:
    for kind, value in MATCHERS:
        made = consumer.add_skip(kind=kind, value=value)
        [kept] = _of(consumer.snapshot(), made["id"]) or [{}]
        expect(f"a {kind}", kept.get("matcher"), {"kind": kind, "value": value})
        consumer.remove_skip(made["id"])


@check(
    "skip-refused",
    "A matcher that cannot be used is refused (422) with a pointer.",
)
def skip_refused(consumer: Consumer) -> None:
    for kind, value in REFUSED:
        asked = consumer.skip(kind=kind, value=value)
        answer = consumer.wire.post("/skips", asked)
        if answer.status == HTTPStatus.CREATED:
            consumer.skips.append(answer.json["id"])
        problem = answer.refused(HTTPStatus.UNPROCESSABLE_ENTITY)
        pointers = [str(error.get("pointer")) for error in problem.get("errors", [])]
        expect("its pointer", [p.startswith("/matcher") for p in pointers], [True])


@check(
    "skip-groups",
    "Who names its consumer group hears of its own skips and of those for all groups,"
    " and of no others.",
)
def skip_groups(consumer: Consumer) -> None:
    with consumer.following(consumer_group=GROUP) as stream:
        groups = ("conformance-other", GROUP, None)
        others, own, common = (
            consumer.add_skip(kind="bookmark", value=new_id(), consumer_group=group)[
                "id"
            ]
            for group in groups
        )
        heard = _heard(stream, last=common, within=2 * consumer.patience)
        kept = consumer.snapshot(consumer_group=GROUP)
        every = consumer.snapshot()

    expect("what the stream told", heard, [own, common])
    expect("the others' in the snapshot of a group", _of(kept, others), [])
    found = [len(_of(kept, own)), len(_of(kept, common)), len(_of(every, others))]
    expect("those in the snapshots", found, [1, 1, 1])


@check(
    "stream-resumes",
    "With `Last-Event-ID` of the last event, or `after`, the stream tells every change"
    " since, in order and once.",
)
def stream_resumes(consumer: Consumer) -> None:
    with consumer.following() as stream:
        before = consumer.add_skip(kind="bookmark", value=new_id())
        place = consumer.event(stream, "skip", before["id"]).id
    missed = [
        consumer.add_skip(kind="bookmark", value=new_id())["id"] for _ in range(3)
    ]
    with consumer.stream(last_event_id=place, after=_far(place)) as stream:
        by_header = _heard(stream, last=missed[-1], within=2 * consumer.patience)
    with consumer.stream(after=place) as stream:
        by_query = _heard(stream, last=missed[-1], within=2 * consumer.patience)

    expect("what came after Last-Event-ID", by_header, missed)
    expect("what came after `after`", by_query, missed)


@check(
    "stream-of-several-topics",
    "One stream carries several topics; its ids hold a revision of each, in the order"
    " asked for, and it resumes each of them where it was.",
)
def stream_of_several_topics(consumer: Consumer) -> None:
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
        heard = _heard(stream, last=None, within=consumer.patience, most=len(missed))
    expect("what came of both", set(heard), set(missed))
    expect("how much came", len(heard), len(missed))


@check(
    "stream-resets",
    "A place of another epoch, or beyond the head, is answered with the event `reset`,"
    " and the stream ends.",
)
def stream_resets(consumer: Consumer) -> None:
    made = consumer.add_skip(kind="bookmark", value=new_id())
    epoch = consumer.snapshot()["epoch"]
    for place in (f"{FOREIGN_EPOCH}.{made['id']}", f"{epoch}.{FAR_AHEAD}"):
        with consumer.stream(last_event_id=place) as stream:
            told = next(stream.until("reset", within=2 * consumer.patience), None)
            expect(f"a reset at {place}", told is not None, wanted=True)
            ended = stream.ends(within=2 * consumer.patience)
            expect("that the stream ends after it", ended, wanted=True)


@check(
    "stream-pings",
    "A `ping` with the id of its place comes at the start, and whenever nothing was"
    " told for 15 seconds.",
)
def stream_pings(consumer: Consumer) -> None:
    epoch = consumer.snapshot()["epoch"]
    with consumer.stream() as stream:
        for when, within in PINGS:
            pings = stream.until("ping", within=within + consumer.patience)
            told = next(pings, None)
            if told is None:
                raise Violated(f"no ping came {when}")
            _expect_place(told, epoch)


@check(
    "skip-applied",
    "What was passed over is counted back: `ok`, once for each `report`; a skip that"
    " does not exist is `rejected`, for itself.",
)
def skip_applied(consumer: Consumer) -> None:
    made = consumer.add_skip(kind="bookmark", value=new_id())
    word = {
        "skip": made["id"],
        "consumer_group": GROUP,
        "client_name": consumer.client_name,
        "count": 2,
        "last_at": moment(),
        "report": new_id(),
    }
    unknown = {**word, "skip": 2**53, "report": new_id()}
    first = consumer.batch("/skips/applied", "applied", word, unknown)
    again = consumer.batch("/skips/applied", "applied", word)

    expect("the answers", statuses(first), ["ok", "rejected"])
    expect("the answer to a repetition", statuses(again), ["ok"])


@check(
    "skip-expires",
    "A skip bears its `expires_at`, after which a consumer ends it by itself; a time"
    " that is past is refused (422).",
)
def skip_expires(consumer: Consumer) -> None:
    until = moment(seconds=3_600)
    made = consumer.add_skip(kind="bookmark", value=new_id(), expires_at=until)
    [kept] = _of(consumer.snapshot(), made["id"])
    asked = consumer.skip(
        kind="bookmark", value=new_id(), expires_at=moment(seconds=-1)
    )
    answer = consumer.wire.post("/skips", asked)

    found = datetime.fromisoformat(str(kept.get("expires_at")))
    expect("when it expires", found, datetime.fromisoformat(until))
    answer.refused(HTTPStatus.UNPROCESSABLE_ENTITY)


@check(
    "skip-of-a-report",
    "A report with `replays: true` makes a skip of its bookmark for its consumer group,"
    " which expires.",
)
def skip_of_a_report(consumer: Consumer) -> None:
    topic = f"{consumer.topic}-replays"
    member = consumer.failure(topic=topic, replays=True)
    with consumer.following(topic, consumer_group=GROUP) as stream:
        [told] = consumer.report(member)
        made = _skip_of(consumer, stream, topic, told)
    matcher = {"kind": "bookmark", "value": member["bookmark"]}

    expect("its matcher", made.get("matcher"), matcher)
    expect("its consumer group", made.get("consumer_group"), GROUP)
    expect("that it expires", bool(made.get("expires_at")), wanted=True)


@check(
    "suspected-is-not-shared",
    "A report with `suspected: true` is kept and makes no skip; the same report again"
    " without it is `updated` and makes it.",
)
def suspected_is_not_shared(consumer: Consumer) -> None:
    topic = f"{consumer.topic}-replays"
    member = consumer.failure(topic=topic, replays=True, suspected=True)
    with consumer.following(topic, consumer_group=GROUP) as stream:
        [kept] = consumer.report(member)
        expect("the answer to the suspected", kept.get("status"), "created")
        expect("the skips it makes", _made_by(consumer, topic, kept), [])

        [told] = consumer.report({**member, "suspected": False})
        expect("the answer to the cleared", told.get("status"), "updated")
        _skip_of(consumer, stream, topic, told)


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


def _of(snapshot: Json, number: object) -> list[Json]:
    return [skip for skip in snapshot["skips"] if skip.get("id") == number]


def _without_revision(data: Json) -> Json:
    return {name: value for name, value in data.items() if name != "revision"}


def _revisions(place: str) -> list[int]:
    return [int(number) for number in place.rpartition(".")[2].split(",")]


def _far(place: str) -> str:
    """Give a place that the stream would not resume at."""
    return f"{place.rpartition('.')[0]}.{FAR_AHEAD}"


def _expect_place(told: Told, epoch: str) -> None:
    found, _, revision = told.id.rpartition(".")
    expect(f"the epoch in the id of a {told.kind}", found, epoch)
    if "revision" in told.data:
        expect("the revision in it", revision, str(told.data["revision"]))


def _heard(
    stream: Stream, *, last: object, within: float, most: int | None = None
) -> list[object]:
    """List the skips that a stream tells until one, or so many, have come."""
    heard: list[object] = []
    for told in stream.until("skip", "reset", within=within):
        heard.append(told.data.get("id", told.kind))
        if heard[-1] == last or len(heard) == most:
            break
    return heard


def _skip_of(consumer: Consumer, stream: Stream, topic: str, result: Json) -> Json:
    """Wait for the skip that a report made, and see that it is removed in the end."""
    events = stream.until("skip", within=consumer.patience)
    of_it = (e.data for e in events if e.data.get("poison") == result.get("poison"))
    told = next(of_it, None)
    made = _made_by(consumer, topic, result)
    if told is None:
        raise Violated(f"no skip was told; in the snapshot there are {made}")
    return told


def _made_by(consumer: Consumer, topic: str, result: Json) -> list[int]:
    """List the skips that a report has made, which are removed in the end."""
    snapshot = consumer.snapshot(topic=topic)
    made = [s["id"] for s in snapshot["skips"] if s["poison"] == result["poison"]]
    consumer.skips += made
    return made
