"""Commands of Redis in bytes, as redis-py writes them."""

from __future__ import annotations

import pytest
from redis.connection import Connection

from apps.brokers.adapters.redis_streams.redis_connection import (
    WRITTEN_BYTES,
    Command,
    encode_commands,
)

LARGE = b"x" * (WRITTEN_BYTES + 1)


@pytest.mark.parametrize(
    "commands",
    [
        [("XLEN", b"orders")],
        [("XRANGE", "\u00e9 \0", "-", "+", "COUNT", 100), ("TIME",)],
        [[b"XADD", b"orders", b"*", b"body", b"", b"a", b"\r\n"]] * 3,
        [[b"XADD", b"orders", b"*", b"body", LARGE, b"a", b"1"], ["XLEN", b"orders"]],
        [[b"XADD", b"orders", b"*", b"body", b"y" * 40_000]] * 5,
        [[b"XADD", b"orders", b"*", b"body", LARGE]] * 2,
    ],
    ids=["one", "texts", "many", "large", "parts", "large last"],
)
def test_commands_are_the_bytes_that_redis_py_writes(commands: list[Command]) -> None:
    theirs = b"".join(Connection().pack_commands(commands))

    assert b"".join(encode_commands(commands)) == theirs


def test_a_large_word_is_not_copied_and_small_ones_are_sent_together() -> None:
    small = [b"XADD", b"orders", b"*", b"body", b"y" * 1_000]

    parts = list(
        encode_commands([*[small] * 10, ["SET", b"large", LARGE], *[small] * 10])
    )

    assert len(parts) == 3
    assert parts[1] is LARGE


def test_nothing_but_bytes_texts_and_numbers_is_sent() -> None:
    view = memoryview(b"body")

    with pytest.raises(AttributeError):
        list(encode_commands([["XADD", b"orders", view]]))  # type: ignore[list-item]
