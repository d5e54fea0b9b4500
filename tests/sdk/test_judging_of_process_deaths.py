from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from poisonguard.contract import Cause
from poisonguard.journal.journal_binary_format import (
    Ending,
    EndingKind,
    Header,
    JournalSnapshot,
    OwnerState,
)
from poisonguard.journal.process_death_blame import Blame, Death, judge
from poisonguard.processes.kernel_process_facts import Identity

NOW = datetime(2026, 11, 20, tzinfo=UTC)
BOOT = UUID(int=1)
SEEN = NOW - timedelta(minutes=5)


def died(
    *words: int,
    hung: tuple[int, ...] = (),
    kind: EndingKind = EndingKind.UNSEEN,
    value: int = 0,
    state: OwnerState = OwnerState.RUN,
    oom_kills: int = 3,
) -> Death:
    header = Header(
        slots=len(words),
        owner=Identity(pid=4711, started=1, boot=BOOT),
        incarnation=UUID(int=2),
        name=b"",
        oom_kills=3,
    )
    at = SEEN if kind is not EndingKind.UNSEEN else None
    snapshot = JournalSnapshot(
        header=header,
        state=state,
        ending=Ending(kind=kind, value=value, at=at),
        words=words,
        beats=(0,) * len(words),
        hung=hung or (0,) * len(words),
    )
    return judge(snapshot, boot=BOOT, oom_kills=oom_kills, at=NOW, stacks="a stack")


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (EndingKind.EXIT, 0, "The process ended with exit code 0"),
        (EndingKind.SIGNAL, 11, "The process was killed by SIGSEGV"),
        (EndingKind.SIGNAL, 40, "The process was killed by signal 40"),
        (EndingKind.MEMORY, 9, "killed by the kernel for lack of memory (OOM)"),
        (EndingKind.UNSEEN, 0, "The process ended without a word"),
    ],
)
def test_the_reason_describes_the_recorded_end(
    kind: EndingKind, value: int, reason: str
) -> None:
    death = died(7, kind=kind, value=value)

    assert reason in death.reason
    assert death.cause is Cause.CRASH
    assert death.at == (NOW if kind is EndingKind.UNSEEN else SEEN)
    assert death.stacks == ""


def test_an_unseen_oom_kill_is_guessed_from_the_counter() -> None:
    assert "lack of memory" in died(7, oom_kills=4).reason
    assert "lack of memory" not in died(7, oom_kills=3).reason
    # The count starts from 0 with a new container.
    assert "lack of memory" not in died(7, oom_kills=0).reason


def test_a_hang_charges_only_the_messages_that_hung() -> None:
    alone = died(7, 8, 0, hung=(7, 0, 0), kind=EndingKind.HANG, value=1500)
    several = died(7, 8, 9, hung=(7, 8, 0), kind=EndingKind.HANG, value=1500)

    assert (alone.numbers, alone.blame) == ((7,), Blame.CHARGED)
    assert (several.numbers, several.blame) == ((7, 8), Blame.SUSPECTED)
    assert alone.cause is Cause.HANG
    assert alone.reason == "The handler was stuck for 1.5 s; the process was killed"
    assert alone.stacks == "a stack"


def test_a_message_that_ended_before_the_kill_is_not_charged() -> None:
    death = died(8, 0, hung=(7, 9), kind=EndingKind.HANG, value=1500)

    assert (death.numbers, death.blame) == ((), Blame.EXCUSED)


def test_a_process_told_to_stop_is_excused_even_for_a_hang() -> None:
    death = died(7, hung=(7,), kind=EndingKind.HANG, state=OwnerState.STOPPING)

    assert death.blame is Blame.EXCUSED
    assert death.reason == "The process was told to stop"
