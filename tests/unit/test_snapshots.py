"""What is held of the skip lists for those who ask next."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from apps.api import snapshots
from apps.api.snapshots import Bodies

PATIENCE = 60.0


def test_simultaneous_callers_share_one_result() -> None:
    bodies, calls = Bodies(), list[int]()
    begun, go_on = threading.Event(), threading.Event()
    answers = list[bytes]()

    def make() -> bytes:
        calls.append(1)
        begun.set()
        go_on.wait(PATIENCE)
        return b"the list"

    def ask() -> None:
        answers.append(bodies.get("orders", ("e1", 7), make))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    begun.wait(PATIENCE)
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE)

    assert answers == [b"the list"] * 20
    assert len(calls) == 1


def test_another_revision_or_list_is_made_again() -> None:
    bodies, calls = Bodies(), list[object]()

    def making(name: object) -> Callable[[], bytes]:
        def make() -> bytes:
            calls.append(name)
            return str(name).encode()

        return make

    keys = [("a", 1), ("a", 1), ("a", 2), ("b", 2), ("a", 2)]
    answers = [bodies.get(key, ("e", at), making((key, at))) for key, at in keys]

    assert calls == [("a", 1), ("a", 2), ("b", 2)]
    assert answers == [str(each).encode() for each in keys]


def test_the_next_caller_tries_again_after_a_failure() -> None:
    bodies = Bodies()

    def fail() -> bytes:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        bodies.get("a", ("e", 1), fail)

    assert bodies.get("a", ("e", 1), lambda: b"there") == b"there"


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_LISTS"])
def test_the_cache_is_bounded(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, limit, 3)
    bodies, calls = Bodies(), list[int]()

    def making(number: int) -> Callable[[], bytes]:
        def make() -> bytes:
            calls.append(number)
            return b"x"

        return make

    for number in (1, 2, 3, 1, 4, 1, 2):
        bodies.get(number, ("e", 1), making(number))

    assert calls == [1, 2, 3, 4, 2]
