"""The programs of the page about the outbox run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg

from poisonguard.outbox import OutboxMessage, SendKind

PAGE = Path(__file__).parents[3] / "docs/outbox.md"
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = FENCED.findall(PAGE.read_text())


class BrokerClient:
    """What the page's programs want of a broker's client."""

    def __init__(self) -> None:
        self.messages: list[OutboxMessage] = []

    def send(self, message: OutboxMessage) -> SendKind:
        self.messages.append(message)
        if message.key == "away":
            raise ConnectionRefusedError
        return SendKind.SENT


def test_a_message_is_put_limited_sent_or_written(outbox_dsn: str) -> None:
    first, settings, limits, publish = PROGRAMS
    client = BrokerClient()
    with psycopg.connect(outbox_dsn, autocommit=True) as connection:
        connection.execute("CREATE TEMP TABLE orders (id int, state text)")
        names: dict[str, Any] = {
            "connection": connection,
            "order_id": 7,
            "body": b"{}",
            "key": "42",
            "client": client,
        }

        exec(compile(first, PAGE.name, "exec"), names)
        exec(compile(limits, PAGE.name, "exec"), names)
        exec(compile(publish, PAGE.name, "exec"), names | {"key": "7"})
        exec(compile(publish, PAGE.name, "exec"), names | {"key": "away"})
        compile(settings, PAGE.name, "exec")

        rows = connection.execute("SELECT key, topic FROM poisonguard_outbox")
        assert sorted(rows) == [("42", "orders"), ("away", "orders")]
    assert [message.key for message in client.messages] == ["7", "away"]
