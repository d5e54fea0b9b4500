"""The cache of skip lists in the web process."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from apps.api import skip_list_cache
from apps.api.skip_list_cache import ListCache

PATIENCE = 60.0


def test_concurrent_requests_for_one_list_make_it_once() -> None:
    bodies, calls = ListCache(), list[int]()
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


def test_another_revision_or_another_list_is_made_again() -> None:
    bodies, calls = ListCache(), list[object]()

    def making(name: object) -> Callable[[], bytes]:
        def make() -> bytes:
            calls.append(name)
            return str(name).encode()

        return make

    keys = [("a", 1), ("a", 1), ("a", 2), ("b", 2), ("a", 2)]
    results = [bodies.get(key, ("e", at), making((key, at))) for key, at in keys]

    assert calls == [("a", 1), ("a", 2), ("b", 2)]
    assert results == [str(each).encode() for each in keys]


def test_a_failed_list_is_made_by_the_next_request() -> None:
    bodies = ListCache()

    def fail() -> bytes:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        bodies.get("a", ("e", 1), fail)

    assert bodies.get("a", ("e", 1), lambda: b"there") == b"there"


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_LISTS"])
def test_the_size_of_the_cache_is_bounded(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skip_list_cache, limit, 3)
    bodies, calls = ListCache(), list[int]()

    def making(number: int) -> Callable[[], bytes]:
        def make() -> bytes:
            calls.append(number)
            return b"x"

        return make

    for number in (1, 2, 3, 1, 4, 1, 2):
        bodies.get(number, ("e", 1), making(number))

    assert calls == [1, 2, 3, 4, 2]
