"""Positions under concurrent writers: none moves back, only the holder settles."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from apps.bookmarks.models import BookmarkPosition, Mark
from apps.bookmarks.services.position_settling import SettleStatus
from apps.core import clock
from apps.team.rights import Principal
from apps.triage.services import position_moves
from apps.triage.services.position_moves import MoveTarget, Strategy
from tests.position_opening_and_settling import opened, settle, statuses, update
from tests.races import together

pytestmark = pytest.mark.django_db(transaction=True)

WRITERS = 64
CONSUMERS = 8


@pytest.mark.parametrize("seed", range(3))
def test_shuffled_updates_of_64_writers_merge_to_their_union(
    now: datetime, seed: int
) -> None:
    names = [f"consumer-{n}" for n in range(CONSUMERS)]
    epochs = {name: opened(now, client_name=name).epoch for name in names}
    updates = [
        update(
            epochs[name],
            (10 * turn, 10 * turn + 9),
            client_name=name,
            publisher=publisher,
            persisted=10 * turn,
        )
        for name in names
        for publisher in ("a", "b")
        for turn in range(WRITERS)
        if (name, turn) != (names[0], 30)
    ]
    chance = random.Random(seed)
    chance.shuffle(updates)
    shares = [updates[turn::WRITERS] for turn in range(WRITERS)]

    def write(turn: int) -> None:
        answers = settle(now, *shares[turn])
        assert set(statuses(answers)) == {SettleStatus.OK}

    together(WRITERS, write)

    ends = Counter(Mark.objects.values_list("processed", "persisted"))
    assert ends == {(639, 630): 2 * CONSUMERS - 2, (299, 630): 2}
    holed = Mark.objects.filter(position__client_name=names[0])
    assert [mark.ahead for mark in holed] == [((310, 639),)] * 2


def test_64_concurrent_opens_get_64_epochs(now: datetime) -> None:
    epochs: list[int] = []

    together(WRITERS, lambda _: epochs.append(opened(now).epoch))

    assert len(set(epochs)) == WRITERS
    assert BookmarkPosition.objects.get().epoch == max(epochs)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_stored_that_a_fenced_holder_settles(
    now: datetime, seed: int
) -> None:
    """Let each holder settle numbers of its own, so that each number has an author.

    The answer to an open includes all that earlier holders will ever have settled.
    """
    chance = random.Random(seed)
    accepted: list[tuple[int, int]] = []
    publishers_at_opening: dict[int, set[int]] = {}

    def hold(_: int) -> None:
        holder = opened(now)
        marks = {m.publisher: m for m in holder.positions[0].marks.all()}
        publishers_at_opening[holder.epoch] = {int(publisher) for publisher in marks}
        for turn in range(chance.randint(1, 6)):
            publisher = str(1000 * holder.epoch + turn)
            answers = settle(now, update(holder.epoch, (0, 5), publisher=publisher))
            if answers[0].status == SettleStatus.OK:
                accepted.append((holder.epoch, int(publisher)))

    together(12, hold)

    stored = {int(name) for name in Mark.objects.values_list("publisher", flat=True)}
    assert {name for _, name in accepted} == stored
    for epoch, publishers in publishers_at_opening.items():
        assert {name for e, name in accepted if e < epoch} == publishers


@pytest.mark.parametrize("seed", range(3))
def test_a_fenced_holder_never_settles_a_mark_that_it_had(
    now: datetime, seed: int
) -> None:
    chance = random.Random(seed)
    settle(now, update(opened(now).epoch, (0, 0)))
    read: dict[int, int] = {}
    settled: dict[int, int] = {}

    def hold(_: int) -> None:
        holder = opened(now)
        (mark,) = holder.positions[0].marks.all()
        read[holder.epoch] = mark.processed
        last = mark.processed
        for _turn in range(chance.randint(1, 6)):
            (answer,) = settle(now, update(holder.epoch, (last + 1, last + 7)))
            if answer.status == SettleStatus.OK:
                last += 7
        settled[holder.epoch] = last

    together(12, hold)

    for before, after in zip(sorted(read), sorted(read)[1:], strict=False):
        assert settled[before] == read[after]
    assert Mark.objects.get().processed == settled[max(settled)]


def stir(turn: int, positions: Sequence[BookmarkPosition], operator: Principal) -> None:
    """Open, move or settle random positions, a few times."""
    chance = random.Random(turn)
    for _ in range(4):
        chosen = chance.choice(positions)
        match turn % 3:
            case 0:
                client = chosen.client_name
                opened(clock.now(), client_name=client, sub_id=None, topic=None)
            case 1:
                position_moves.move(
                    position_id=chosen.pk,
                    wish=MoveTarget(strategy=Strategy.SHIFT, by=turn + 1),
                    reason="race",
                    fence=True,
                    principal=operator,
                    now=clock.now(),
                )
            case _:
                positions = chance.sample(
                    list(BookmarkPosition.objects.all()), len(positions)
                )
                settle(clock.now(), *(a_little(each, chance) for each in positions))


def a_little(position: BookmarkPosition, chance: random.Random) -> dict[str, Any]:
    return update(
        position.epoch,
        (0, chance.randint(1, 50)),
        client_name=position.client_name,
        sub_id=position.sub_id,
        publisher=chance.choice(["", "a", "b", "c"]),
    )


def test_moves_opens_and_settles_together_never_lock_each_other_out(
    operator: Principal, now: datetime
) -> None:
    for n in range(12):
        names: dict[str, Any] = {"client_name": f"consumer-{n // 2}", "sub_id": str(n)}
        settle(now, update(opened(now, **names).epoch, (0, 1), **names))
    positions = list(BookmarkPosition.objects.all())

    together(15, lambda turn: stir(turn, positions, operator))

    epochs = dict(BookmarkPosition.objects.values_list("pk", "epoch"))
    assert all(mark.epoch == epochs[mark.position_id] for mark in Mark.objects.all())
    assert Mark.objects.count() > len(positions)
