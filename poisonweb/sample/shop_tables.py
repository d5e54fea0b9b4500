"""The tables of the sample's shop, in a database of its own: sales, and its outbox."""

from __future__ import annotations

import psycopg

from poisonguard.outbox.postgres_schema import schema

_SALES = """
CREATE TABLE sale (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cents bigint NOT NULL,
    sold_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX sale_sold_at ON sale (sold_at)
"""
# As the table of the article was made: two rows may have one message id. The page of
# the outbox has the SQL that mends it.
_WITHOUT_UNIQUE_INDEX = (
    "ALTER TABLE poisonguard_outbox DROP CONSTRAINT poisonguard_outbox_one_message"
)


def make(url: str) -> None:
    """Make the tables of the sample's shop; bring its outbox's up to date."""
    with psycopg.connect(url) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(schema())
        row = connection.execute("SELECT to_regclass('sale') IS NULL").fetchone()
        if row == (True,):
            connection.execute(_SALES)
            connection.execute(_WITHOUT_UNIQUE_INDEX)
