from __future__ import annotations

from poisonguard.handling.concurrency_slots_and_suspect_isolation import (
    Gate,
    Numbering,
    Slots,
)
from poisonguard.handling.handled_counts_and_durations import (
    ProcessCounts,
    Slot,
    bucket,
)


def turns_of(slots: int) -> tuple[Slots, Gate]:
    gate = Gate()
    return Slots([Slot(place) for place in range(slots)], gate), gate


def test_a_gate_opens_when_its_last_reason_is_gone() -> None:
    gate = Gate("starting")

    gate.close("breaker")
    gate.open("starting")
    shut = gate.is_open
    gate.open("breaker")

    assert (shut, gate.is_open) == (False, True)


def test_an_open_gate_numbers_messages_by_its_current_choice() -> None:
    numbers = iter([7, 8])

    def choose() -> Numbering:
        number = next(numbers)
        return lambda _message: number

    gate = Gate("starting", choose=choose)
    given_numbers = [gate.numbering("shut")]
    gate.open("starting")
    given_numbers.append(gate.numbering("open"))
    gate.choose_numbering()
    given_numbers.append(gate.numbering("chosen again"))
    gate.close("breaker")
    gate.choose_numbering()
    given_numbers.append(gate.numbering("shut again"))

    assert given_numbers == [0, 7, 8, 0]


def test_a_consumer_of_one_thread_uses_the_first_slot() -> None:
    turns, _ = turns_of(4)

    places = []
    for _ in range(3):
        slot = turns.take(alone=None)
        assert slot
        places.append(slot.place)
        turns.give_back(slot)

    assert places == [0, 0, 0]


def test_a_message_that_runs_alone_waits_for_others_and_blocks_new_ones() -> None:
    turns, gate = turns_of(2)
    suspect, other = object(), object()
    running = turns.take(alone=None)
    assert running

    early, late = turns.take(alone=suspect), turns.take(alone=None)
    shut = gate.is_open
    turns.give_back(running)
    alone, another = turns.take(alone=suspect), turns.take(alone=other)
    assert alone
    turns.give_back(alone)
    turns.end_turn_alone(suspect)

    assert (early, late, another) == (None, None, None)
    assert (shut, gate.is_open) == (False, True)
    assert turns.take(alone=other)


def test_no_slot_is_given_while_all_are_in_use() -> None:
    turns, _ = turns_of(1)

    slots = [turns.take(alone=None) for _ in "ab"]

    assert slots[0]
    assert slots[1] is None


def test_take_new_returns_the_counts_since_the_last_call() -> None:
    slots = [Slot(0), Slot(1)]
    counts = ProcessCounts(slots)
    slots[0].handled, slots[1].handled = 3, 4
    counts.seconds.extend([0.0001, 0.003])

    first = counts.take_new()
    slots[1].handled += 1

    assert first == (7, {0: 1, 1: 1})
    assert counts.take_new() == (1, {})


def test_durations_fall_into_powers_of_two_milliseconds() -> None:
    seconds = [0.0, 0.0019, 0.002, 0.0039, 0.004, 1.0, 1e30]

    assert [bucket(s) for s in seconds] == [0, 0, 1, 1, 2, 9, 63]
