"""Redrive ids: what one stands for can be read back from it."""

from __future__ import annotations

import random
import uuid

import pytest

from apps.poison.redrive_ids import RedriveKey, pack, unpack

HIGHEST = RedriveKey(operation=2**48 - 1, item=2**32 - 1, n=2**42 - 1)


@pytest.mark.parametrize(
    "key",
    [
        RedriveKey(0, 0, 0),
        RedriveKey(1, 0, 1),
        HIGHEST,
        HIGHEST._replace(operation=0),
        HIGHEST._replace(item=0),
        HIGHEST._replace(n=0),
    ],
)
def test_an_id_leads_back_to_what_it_stands_for(key: RedriveKey) -> None:
    redrive = pack(*key)

    assert unpack(redrive) == key
    assert unpack(uuid.UUID(str(redrive))) == key
    assert (redrive.version, redrive.variant) == (8, uuid.RFC_4122)


def test_no_two_redrives_have_one_id() -> None:
    chance = random.Random(17)
    keys = {
        RedriveKey(*(chance.randrange(highest + 1) for highest in HIGHEST))
        for _ in range(1_000)
    }
    keys |= {RedriveKey(*(chance.randrange(2) for _ in range(3))) for _ in range(50)}

    ids = {key: pack(*key) for key in keys}

    assert len(set(ids.values())) == len(keys)
    assert all(unpack(redrive) == key for key, redrive in ids.items())


@pytest.mark.parametrize(
    "redrive",
    [
        uuid.uuid4(),
        uuid.uuid1(),
        uuid.UUID(int=0),
        uuid.UUID(int=2**128 - 1),
        # Of version 8, but not of the variant that says what a version is.
        uuid.UUID(int=pack(1, 2, 3).int ^ 1 << 63),
    ],
)
def test_an_id_of_another_make_stands_for_nothing(redrive: uuid.UUID) -> None:
    assert unpack(redrive) is None
