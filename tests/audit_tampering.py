"""Ways in which the owner of the audit tables can tamper with them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from django.db import connection


@dataclass(frozen=True, kw_only=True, slots=True)
class TamperedEntry:
    """Where to tamper: at entry `seq`, of `entries` of which `covered` are covered."""

    seq: int
    covered: int
    entries: int


def run(*statements: str) -> None:
    """Run statements as the audit trail's owner, who first disables its trigger."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE audit_entry DISABLE TRIGGER USER")
        cursor.execute("GRANT UPDATE, DELETE ON audit_entry TO CURRENT_USER")
        for statement in statements:
            cursor.execute(statement)


def hash_again(first: int, last: int = 2**62) -> None:
    """Rewrite the audit chain between two entries, and its head at the end."""
    run(f"""
        DO $$ DECLARE digest bytea := sha256('poisonweb'); entry record; BEGIN
        IF {first} > 1 THEN
            SELECT hash INTO digest FROM audit_entry WHERE seq = {first} - 1;
        END IF;
        FOR entry IN SELECT seq, record FROM audit_entry
                     WHERE seq BETWEEN {first} AND {last} ORDER BY seq LOOP
            digest := sha256(digest || convert_to(entry.record, 'UTF8'));
            UPDATE audit_entry SET hash = digest WHERE seq = entry.seq;
        END LOOP;
        IF NOT EXISTS (SELECT FROM audit_entry WHERE seq > {last}) THEN
            UPDATE audit_head SET hash = digest,
                seq = (SELECT coalesce(max(seq), 0) FROM audit_entry);
        END IF;
        END $$
    """)


def renumber() -> None:
    """Number the audit entries from 1 again, in the column and in the record."""
    run(
        "UPDATE audit_entry SET seq = seq + 1000000",
        """
        UPDATE audit_entry SET seq = place, record = regexp_replace(
            record, '"seq":[0-9]+', '"seq":' || place)
        FROM (SELECT seq AS old, row_number() OVER (ORDER BY seq) AS place
              FROM audit_entry) numbered
        WHERE seq = old
        """,
    )


def forge(seq: int) -> None:
    """Insert a forged audit entry between two real ones."""
    run(
        f"UPDATE audit_entry SET seq = -seq - 1 WHERE seq >= {seq}",
        "UPDATE audit_entry SET seq = -seq WHERE seq < 0",
        f"""
        INSERT INTO audit_entry (seq, record, hash)
        SELECT {seq}, replace(record, 'user:anna', 'user:boris'), hash
        FROM audit_entry WHERE seq = {seq} + 1
        """,
    )
    renumber()


def edit(place: TamperedEntry) -> bool:
    change = random.choice(
        (
            "replace(record, 'user:anna', 'user:boris')",
            "regexp_replace(record, '\"at_us\":1', '\"at_us\":2')",
            "replace(record, 'api_key.created', 'user.created')",
            "replace(record, '\"n\":', '\"m\":')",
        )
    )
    run(f"UPDATE audit_entry SET record = {change} WHERE seq = {place.seq}")
    return False


def edit_and_hash_again(place: TamperedEntry) -> bool:
    edit(place)
    hash_again(place.seq)
    return True


def edit_and_hash_again_for_a_while(place: TamperedEntry) -> bool:
    edit(place)
    hash_again(place.seq, random.randint(place.seq, place.entries))
    return True


def change_a_hash(place: TamperedEntry) -> bool:
    run(f"UPDATE audit_entry SET hash = sha256('other') WHERE seq = {place.seq}")
    return False


def change_a_column(place: TamperedEntry) -> bool:
    column = random.choice(("actor", "action", "subject", "reason", "source"))
    run(
        f"ALTER TABLE audit_entry ALTER COLUMN {column} DROP EXPRESSION",
        f"UPDATE audit_entry SET {column} = 'other' WHERE seq = {place.seq}",
    )
    return False


def remove(place: TamperedEntry) -> bool:
    last = min(place.seq + random.randrange(3), place.entries - 1)
    run(f"DELETE FROM audit_entry WHERE seq BETWEEN {place.seq} AND {last}")
    return False


def remove_and_hash_again(place: TamperedEntry) -> bool:
    remove(place)
    renumber()
    hash_again(place.seq)
    return True


def forge_and_hash_again(place: TamperedEntry) -> bool:
    forge(place.seq)
    hash_again(place.seq)
    return True


def swap_and_hash_again(place: TamperedEntry) -> bool:
    run(
        f"UPDATE audit_entry SET seq = 0 WHERE seq = {place.seq}",
        f"UPDATE audit_entry SET seq = {place.seq} WHERE seq = {place.seq} + 1",
        f"UPDATE audit_entry SET seq = {place.seq} + 1 WHERE seq = 0",
    )
    renumber()
    hash_again(place.seq)
    return True


def cut(place: TamperedEntry) -> bool:
    run(f"DELETE FROM audit_entry WHERE seq >= {place.seq}")
    hash_again(place.seq)
    return False


def cut_and_go_on(place: TamperedEntry) -> bool:
    """Replace the audit trail's end by as many forged entries, or more."""
    run(
        "UPDATE audit_entry SET record = replace(record, 'user:anna', 'user:boris')"
        f" WHERE seq >= {place.seq}",
        "INSERT INTO audit_entry (seq, record, hash)"
        f" SELECT seq + {place.entries}, record, hash FROM audit_entry WHERE seq < 4",
    )
    renumber()
    hash_again(place.seq)
    return True


# Each returns whether it hashed the chain again: then no single entry is bad.
TAMPERINGS: tuple[Callable[[TamperedEntry], bool], ...] = (
    edit,
    edit_and_hash_again,
    edit_and_hash_again_for_a_while,
    change_a_hash,
    change_a_column,
    remove,
    remove_and_hash_again,
    forge_and_hash_again,
    swap_and_hash_again,
    cut,
    cut_and_go_on,
)
