"""Check how a server keeps positions: opening, settling in any order, resuming."""

from __future__ import annotations

from poisonguard_conformance.raw_http_client import Json, Violated
from poisonguard_conformance.server_check_and_played_consumer import (
    Consumer,
    check,
    expect,
    new_id,
    statuses,
)

LAST = 2**63 - 2
MOST_RUNS = 4_096
PRESSED = MOST_RUNS * 3 // 4
PUBLISHER = "conformance"


@check(
    "position-open",
    "Opening a position gives it to the asker under an epoch above all before; of one"
    " that is new there is nothing settled.",
)
def position_open(consumer: Consumer) -> None:
    """Check that a Poisonweb server opens positions empty, and under growing epochs."""
    sub_id = new_id()
    first, second = _open(consumer, sub_id), _open(consumer, sub_id)

    expect("the marks of a new position", _processed(first), {})
    expect("that the epoch grows", second["epoch"] > first["epoch"], expected=True)


@check(
    "position-any-order",
    "Runs may be settled in any order and any number of times; what has no hole before"
    " it is `processed`, the rest is `settled`.",
)
def position_any_order(consumer: Consumer) -> None:
    """Check that a Poisonweb server merges runs settled in any order."""
    sub_id = new_id()
    epoch = _open(consumer, sub_id)["epoch"]
    for runs in ([[7, 9]], [[3, 4], [0, 1]], [[7, 9], [12, 13]], [[2, 2]]):
        _settle(consumer, sub_id, epoch, settled=runs)
    mark = _mark(consumer, sub_id)

    expect("processed", mark.get("processed"), 4)
    expect("settled", mark.get("settled"), [[7, 9], [12, 13]])
    expect("resume", mark.get("resume"), 4)


@check(
    "position-persisted",
    "A position resumes at the lesser of processed and persisted; persisted never goes"
    " back.",
)
def position_persisted(consumer: Consumer) -> None:
    """Check that a Poisonweb server resumes at the lesser of two numbers.

    They are `processed` and `persisted`.
    """
    sub_id = new_id()
    epoch = _open(consumer, sub_id)["epoch"]
    _settle(consumer, sub_id, epoch, settled=[[0, 100]], received=120, persisted=60)
    _settle(consumer, sub_id, epoch, settled=[], persisted=50)
    behind = _mark(consumer, sub_id)
    epoch = _open(consumer, sub_id)["epoch"]
    _settle(consumer, sub_id, epoch, settled=[], persisted=200)
    ahead = _mark(consumer, sub_id)

    expect("persisted", behind.get("persisted"), 60)
    expect("resume with persisted behind", behind.get("resume"), 60)
    expect("resume with persisted ahead", ahead.get("resume"), 100)


@check(
    "position-publishers",
    "Each publisher of a position is kept for itself.",
)
def position_publishers(consumer: Consumer) -> None:
    """Check that a Poisonweb server keeps each publisher's numbers apart."""
    sub_id = new_id()
    epoch = _open(consumer, sub_id)["epoch"]
    for publisher, last in (("", 5), ("18446744073709551615", 7)):
        _settle(consumer, sub_id, epoch, publisher=publisher, settled=[[0, last]])
    answer = _open(consumer, sub_id)

    expected = {"": 5, "18446744073709551615": 7}
    expect("processed of each", _processed(answer), expected)


@check(
    "position-fenced",
    "Who opened a position before is answered `fenced`, and settles nothing.",
)
def position_fenced(consumer: Consumer) -> None:
    """Check that a Poisonweb server fences the former holder of a position."""
    sub_id = new_id()
    old, new = (_open(consumer, sub_id)["epoch"] for _ in "ab")
    stale = _update(consumer, sub_id, old, settled=[[0, 5]])
    current = _update(consumer, sub_id, new, settled=[[0, 2]])
    results = consumer.batch("/positions/settle", "updates", stale, current)

    expect("the answers", statuses(results), ["fenced", "ok"])
    expect("processed", _mark(consumer, sub_id).get("processed"), 2)


@check(
    "position-fence-told",
    "Opening a position is an event `fence` on the stream of its topic, with its client"
    " name, sub id and new epoch.",
)
def position_fence_told(consumer: Consumer) -> None:
    """Check that a Poisonweb server's stream announces who opened a position."""
    sub_id = new_id()
    _open(consumer, sub_id)
    with consumer.following() as stream:
        epoch = _open(consumer, sub_id)["epoch"]
        fences = stream.until("fence", within=consumer.event_timeout)
        fence = next((f.data for f in fences if f.data.get("sub_id") == sub_id), None)

    if fence is None:
        raise Violated("no fence came")
    expect("its client name", fence.get("client_name"), consumer.client_name)
    expect("its topic", fence.get("topic"), consumer.topic)
    expect("its epoch", fence.get("epoch"), epoch)


@check(
    "position-rejected",
    "A run that is upside down, negative, no pair of whole numbers or beyond 2^63-2 is"
    " `rejected` with its pointer, and sinks no other update; 2^63-2 itself is kept.",
)
def position_rejected(consumer: Consumer) -> None:
    """Check that a Poisonweb server rejects broken runs, and takes the others."""
    sub_id = new_id()
    epoch = _open(consumer, sub_id)["epoch"]
    bad = ([5, 3], [-1, 3], [0, LAST + 1], [0, 1.5], [0, True], [0], "0-3")
    updates = [_update(consumer, sub_id, epoch, settled=[run]) for run in bad]
    good = _update(consumer, sub_id, epoch, settled=[[0, 1], [LAST, LAST]])
    results = consumer.batch("/positions/settle", "updates", *updates, good)

    expect("the answers", statuses(results), ["rejected"] * len(bad) + ["ok"])
    pointers = {str(result.get("pointer")) for result in results[: len(bad)]}
    expect("the pointers", pointers, {"/settled/0"})
    mark = _mark(consumer, sub_id)
    expect("what was kept", mark.get("settled"), [[LAST, LAST]])


@check(
    "position-unopened",
    "Settling a position that was never opened is `rejected`.",
)
def position_unopened(consumer: Consumer) -> None:
    """Check that a Poisonweb server rejects settling in a position never opened."""
    update = _update(consumer, new_id(), 1, settled=[[0, 1]])
    answer = consumer.wire.post(
        "/positions/settle", {"updates": [update]}
    ).json_of_success

    expect("the answer", statuses(answer["results"]), ["rejected"])


@check(
    "position-pressure",
    "From 3,072 runs on an answer bears `pressure`; beyond 4,096 an update is"
    " `rejected` and changes nothing, until what lies between is settled.",
)
def position_pressure(consumer: Consumer) -> None:
    """Check that a Poisonweb server warns of too many runs, and then rejects more."""
    sub_id = new_id()
    epoch = _open(consumer, sub_id)["epoch"]
    results = [
        _settle_result(consumer, sub_id, epoch, _separate_runs(first, last))
        for first, last in ((1, 1_000), (1_001, PRESSED), (PRESSED + 1, MOST_RUNS + 1))
    ]
    relief = _settle_result(consumer, sub_id, epoch, [[0, 2 * PRESSED]])

    expect("the answers", statuses(results), ["ok", "ok", "rejected"])
    expect("no pressure at first", results[0].get("pressure"), None)
    expect("pressure then", results[1].get("pressure"), 0.75)
    expect("the answer once the holes are filled", relief.get("status"), "ok")
    mark = _mark(consumer, sub_id)
    expect(
        "what is kept", [mark.get("processed"), mark.get("settled")], [2 * PRESSED, []]
    )


CHECKS = (
    position_open,
    position_any_order,
    position_persisted,
    position_publishers,
    position_fenced,
    position_fence_told,
    position_rejected,
    position_unopened,
    position_pressure,
)


def _open(consumer: Consumer, sub_id: str) -> Json:
    """Open a position at the checked server for the played consumer.

    Return the server's answer.
    """
    request = {
        "client_name": consumer.client_name,
        "sub_id": sub_id,
        "topic": consumer.topic,
        "replays": False,
    }
    answer: Json = consumer.wire.post("/positions/open", request).json_of_success
    return answer


def _update(consumer: Consumer, sub_id: str, epoch: int, **changes: object) -> Json:
    """Build a played consumer's update of a position: a member of a request.

    The request is POST /positions/settle.
    """
    update = {
        "client_name": consumer.client_name,
        "sub_id": sub_id,
        "topic": consumer.topic,
        "epoch": epoch,
        "publisher": PUBLISHER,
    }
    return {**update, **changes}


def _settle_result(
    consumer: Consumer, sub_id: str, epoch: int, runs: list[list[int]]
) -> Json:
    """Settle runs of a position at the checked server; return its result of that."""
    update = _update(consumer, sub_id, epoch, settled=runs)
    [result] = consumer.batch("/positions/settle", "updates", update)
    return result


def _settle(consumer: Consumer, sub_id: str, epoch: int, **changes: object) -> None:
    """Settle runs of a position at the checked server.

    Raise Violated unless it answers ok.
    """
    update = _update(consumer, sub_id, epoch, **changes)
    results = consumer.batch("/positions/settle", "updates", update)
    expect("the answer", statuses(results), ["ok"])


def _mark(consumer: Consumer, sub_id: str) -> Json:
    """Open a position at the checked server again, which changes its epoch.

    Return its one mark: the numbers of a publisher.
    """
    [mark] = _open(consumer, sub_id)["positions"]
    return dict(mark)


def _processed(opened: Json) -> dict[str, int]:
    """Return each publisher's `processed` number of a position at the checked server.

    Publishers with nothing settled are left out.
    """
    return {
        mark["publisher"]: mark["processed"]
        for mark in opened["positions"]
        if mark["processed"] >= 0 or mark["settled"]
    }


def _separate_runs(first: int, last: int) -> list[list[int]]:
    """Return settled runs for a check: of one message each, with gaps between them."""
    return [[2 * place, 2 * place] for place in range(first, last + 1)]
