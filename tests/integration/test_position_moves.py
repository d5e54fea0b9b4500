"""Moves of positions by people: reviewed, made, audited, notified and restored."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from apps.audit import verification
from apps.audit.models import Entry
from apps.bookmarks import services as bookmarks
from apps.bookmarks.models import BookmarkPosition, Mark, Move
from apps.bookmarks.services import watermark_samples
from apps.bookmarks.services.position_settling import SettleStatus
from apps.brokers.models import Topic
from apps.core.actor import Actor
from apps.core.errors import Absent, Forbidden, Invalid, Refused
from apps.core.notify_channel import CHANNEL
from apps.team.rights import Principal, Scope
from apps.triage.services import position_moves
from apps.triage.services.position_moves import (
    MoveTarget,
    PositionChanged,
    Review,
    StillHeld,
    Strategy,
)
from tests.failure_report_builders import drop, poisons
from tests.position_opening_and_settling import opened, settle, told_by_broker, update

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
READER = Principal(actor=Actor.user("eve"), scopes=frozenset({Scope.POSITIONS_READ}))
ELSEWHERE = Principal(
    actor=Actor.key("eu"), scopes=frozenset(Scope), topics=("orders.eu",)
)


@pytest.fixture
def position(now: datetime) -> BookmarkPosition:
    """Return a position an hour old: 0 to 100 and 121 to 140 are settled."""
    epoch = opened(now - HOUR).epoch
    progress = update(epoch, (0, 100), (121, 140), received=150, bookmark="b")
    settle(now - HOUR, progress)
    return BookmarkPosition.objects.get()


def to(seq: int, publisher: str = "") -> MoveTarget:
    return MoveTarget(strategy=Strategy.EXACT, to={publisher: seq})


def move(
    position: BookmarkPosition,
    wish: MoveTarget,
    principal: Principal,
    now: datetime,
    *,
    fence: bool = False,
    agreed: Callable[[Review], bool] = lambda _: True,
) -> Move:
    _, done = position_moves.move(
        position_id=position.pk,
        wish=wish,
        reason="a bad deploy",
        fence=fence,
        principal=principal,
        now=now,
        agreed=agreed,
    )
    return done


def mark() -> Mark:
    return Mark.objects.get(publisher="", position__source="sdk")


def test_a_move_back_replays_all_after_the_target(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    review = position_moves.review(
        position_id=position.pk, wish=to(10), principal=operator, now=now
    )
    untouched = mark()
    move(position, to(10), operator, now)

    (step,) = review.steps
    assert untouched.processed == 100
    assert (step.change.old, step.change.new) == (100, 10)
    assert step.change.replayed == ((11, 100), (121, 140))
    assert (step.change.passed_over, step.beyond) == ((), False)
    assert (mark().processed, mark().ahead, mark().bookmark) == (10, (), "")


def test_a_move_forward_passes_over_only_what_is_not_settled(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    review = position_moves.review(
        position_id=position.pk, wish=to(110), principal=operator, now=now
    )
    move(position, to(120), operator, now)

    (step,) = review.steps
    assert (step.change.replayed, step.change.passed_over) == ((), ((101, 110),))
    assert step.change.after == ((0, 110), (121, 140))
    assert (mark().processed, mark().ahead) == (140, ())


def test_the_holder_is_fenced_and_resumes_at_the_new_place(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    done = move(position, to(10), operator, now)

    (late,) = settle(now, update(position.epoch, (101, 120)))
    reopened = opened(now)

    assert late.status == SettleStatus.FENCED
    assert reopened.epoch > done.epoch > position.epoch
    (mark,) = reopened.positions[0].marks.all()
    assert (mark.processed, mark.resume_after) == (10, 10)


@pytest.mark.django_db(transaction=True)
def test_the_holder_is_told_of_its_fence_with_the_commit(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"LISTEN {CHANNEL}")
        move(position, to(10), operator, now)
        opened(now)
        assert connection.connection is not None
        notices = [
            json.loads(notice.payload)["fence"]
            for notice in connection.connection.notifies(timeout=60, stop_after=2)
        ]
        cursor.execute(f"UNLISTEN {CHANNEL}")

    name = {"client_name": "billing-1", "sub_id": "1", "topic": "orders"}
    assert notices == [{**name, "epoch": 2}, {**name, "epoch": 3}]


def test_a_move_is_audited_with_the_state_before_and_after(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    done = move(position, to(10), operator, now)

    entry = Entry.objects.latest("seq")
    assert (entry.action, entry.subject) == (
        "position.moved",
        f"position:{position.pk}",
    )
    assert (entry.actor, entry.reason) == ("user:anna", "a bad deploy")
    assert entry.detail["before"] == {"": "100"}
    assert entry.detail["after"] == {"": "10"}
    assert entry.detail["epoch"] == done.epoch
    assert verification.verify().ok


def test_a_move_that_cannot_be_audited_is_not_made(
    position: BookmarkPosition,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT before")
        cursor.execute("ALTER TABLE audit_entry RENAME TO gone")
        with pytest.raises(Exception, match="audit_entry"):
            move(position, to(10), operator, now)
        cursor.execute("ROLLBACK TO SAVEPOINT before")

    assert (mark().processed, Move.objects.count()) == (100, 0)
    assert BookmarkPosition.objects.get().epoch == position.epoch


def test_an_active_holder_is_moved_only_when_fencing_is_confirmed(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    settle(now, update(position.epoch, (101, 101)))
    soon, later = now + timedelta(seconds=119), now + timedelta(seconds=120)

    with pytest.raises(StillHeld):
        move(position, to(10), operator, soon)
    untouched = mark().processed
    move(position, to(10), operator, soon, fence=True)
    fenced = Entry.objects.latest("seq").detail["fenced"]
    move(position, to(20), operator, later)

    assert (untouched, fenced, mark().processed) == (101, True, 20)


def test_every_move_can_be_restored(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    back = move(position, to(10), operator, now)
    forward = move(position, to(500), operator, now)

    undone = move(
        position, MoveTarget(strategy=Strategy.RESTORE, move=forward.pk), operator, now
    )
    after_one = mark().settled
    move(position, MoveTarget(strategy=Strategy.RESTORE, move=back.pk), operator, now)

    assert (undone.restores_id, after_one) == (forward.pk, ((0, 10),))
    assert (mark().processed, mark().ahead) == (100, ((121, 140),))


def test_the_move_of_another_position_cannot_be_restored(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    done = move(position, to(10), operator, now)
    (other,) = opened(now, client_name="billing-2").positions

    with pytest.raises(Invalid, match="no such move"):
        move(other, MoveTarget(strategy=Strategy.RESTORE, move=done.pk), operator, now)


def test_a_move_is_refused_when_the_position_changed_after_the_review(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    review = position_moves.review(
        position_id=position.pk, wish=to(110), principal=operator, now=now
    )

    def agreed(by_now: Review) -> bool:
        return by_now.outcome == review.outcome

    settle(now, update(position.epoch, (101, 105)))
    move(position, to(110), operator, now, fence=True, agreed=agreed)
    moved = mark().processed
    with pytest.raises(PositionChanged):
        move(position, to(110), operator, now, fence=True, agreed=agreed)

    assert moved == 110


def test_a_forward_move_is_refused_when_it_would_now_go_back(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    review = position_moves.review(
        position_id=position.pk, wish=to(110), principal=operator, now=now
    )
    settle(now, update(position.epoch, (101, 118)))

    with pytest.raises(PositionChanged):
        move(
            position,
            to(110),
            operator,
            now,
            fence=True,
            agreed=lambda by_now: by_now.outcome == review.outcome,
        )

    assert mark().processed == 118


@pytest.mark.parametrize(
    ("wish", "lands"),
    [
        (MoveTarget(strategy=Strategy.START), -1),
        (MoveTarget(strategy=Strategy.END), 150),
        (MoveTarget(strategy=Strategy.SHIFT, by=-30), 70),
        (MoveTarget(strategy=Strategy.SHIFT, by=5), 105),
        (MoveTarget(strategy=Strategy.SHIFT, by=-(10**20)), -1),
        (MoveTarget(strategy=Strategy.SHIFT, by=10**20), 2**63 - 2),
        (to(-1), -1),
        (to(0), 0),
        (to(2**63 - 2), 2**63 - 2),
    ],
)
def test_each_strategy_lands_where_it_says(
    position: BookmarkPosition,
    operator: Principal,
    now: datetime,
    wish: MoveTarget,
    lands: int,
) -> None:
    done, _ = position_moves.move(
        position_id=position.pk,
        wish=wish,
        reason="a test",
        fence=False,
        principal=operator,
        now=now,
    )

    assert mark().processed == lands
    assert done.steps[0].beyond == (lands > 150)


def test_the_end_is_the_head_that_the_broker_reports(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    group = told_by_broker("other", seq=170, head_seq=180, lag=10)
    bookmarks.observe(topic=position.topic, consumers=[group], now=now)

    move(position, MoveTarget(strategy=Strategy.END), operator, now)
    at_end = mark().processed
    copied = BookmarkPosition.objects.get(source="broker")
    move(position, MoveTarget(strategy=Strategy.COPY, other=copied.pk), operator, now)

    assert (at_end, mark().processed) == (180, 170)
    with pytest.raises(Refused, match="Its broker keeps"):
        move(copied, to(5), operator, now)


def test_a_move_to_a_time_uses_samples_and_is_refused_without_one(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    watermark_samples.take(now=now - HOUR)
    settle(now - HOUR, update(position.epoch, (101, 110)))
    settle(now - HOUR, update(position.epoch, (0, 7), publisher="new"))
    watermark_samples.take(now=now - HOUR / 2)
    half_past = now - HOUR / 2 - timedelta(minutes=1)

    for wrong in (now - 2 * HOUR, now + HOUR, None):
        with pytest.raises(Invalid) as refused:
            move(position, MoveTarget(strategy=Strategy.TIME, at=wrong), operator, now)
        assert refused.value.field == "at"
    move(position, MoveTarget(strategy=Strategy.TIME, at=half_past), operator, now)

    marks = dict(Mark.objects.values_list("publisher", "processed"))
    assert marks == {"": 100, "new": -1}


def test_a_new_consumer_can_copy_the_position_of_another(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    (new,) = opened(now, client_name="billing-2").positions
    (elsewhere,) = opened(now, client_name="billing-2", topic="refunds").positions

    move(new, MoveTarget(strategy=Strategy.COPY, other=position.pk), operator, now)
    (position_now,) = opened(now, client_name="billing-2", topic="orders").positions

    (copied,) = position_now.marks.all()
    assert (copied.processed, copied.ahead) == (100, ())
    for other in (elsewhere.pk, new.pk, None, 10**6):
        with pytest.raises(Invalid) as refused:
            move(new, MoveTarget(strategy=Strategy.COPY, other=other), operator, now)
        assert refused.value.field == "other"


def test_a_position_without_marks_cannot_be_copied(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    (new,) = opened(now, client_name="billing-2").positions

    with pytest.raises(Invalid, match="no position yet"):
        move(position, MoveTarget(strategy=Strategy.COPY, other=new.pk), operator, now)


def test_a_move_names_the_open_poison_that_it_replays_or_passes_over(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    for bookmark in ("5", "50", "110", "130", "145", "order-50", "x|50|"):
        poisons(now, 1, bookmark=bookmark)
    (dropped,) = poisons(now, 1, bookmark="51")
    drop(now, dropped)
    poisons(now, 1, bookmark="52", topic="refunds")

    def among(wish: MoveTarget) -> tuple[list[int], list[int]]:
        review = position_moves.review(
            position_id=position.pk, wish=wish, principal=operator, now=now
        )
        (step,) = review.steps
        return (
            sorted(poison.place.seq for poison in step.replayed),
            sorted(poison.place.seq for poison in step.passed_over),
        )

    assert among(to(10)) == ([50, 130], [])
    assert among(to(120)) == ([], [110])


def test_a_move_needs_the_right_the_topic_a_reason_and_somewhere_to_go(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    values: dict[str, Any] = {
        "position_id": position.pk,
        "wish": to(10),
        "reason": "why not",
        "fence": False,
        "principal": operator,
        "now": now,
    }

    for changed, error in (
        ({"principal": READER}, Forbidden),
        ({"principal": ELSEWHERE}, Absent),
        ({"position_id": 10**6}, Absent),
        ({"reason": "  "}, Invalid),
        ({"reason": "x" * 2001}, Invalid),
        ({"wish": MoveTarget(strategy=Strategy.EXACT)}, Invalid),
        ({"wish": MoveTarget(strategy=Strategy.SHIFT)}, Invalid),
        ({"wish": MoveTarget(strategy=Strategy.RESTORE, move=None)}, Invalid),
    ):
        with pytest.raises(error):
            position_moves.move(**{**values, **changed})

    assert mark().processed == 100
    assert Topic.objects.count() == 1


def test_a_move_to_the_current_place_is_refused(
    position: BookmarkPosition, operator: Principal, now: datetime
) -> None:
    move(position, to(100), operator, now)
    dropped_ahead = mark().ahead

    with pytest.raises(Refused, match="already"):
        move(position, to(100), operator, now)

    assert dropped_ahead == ()
