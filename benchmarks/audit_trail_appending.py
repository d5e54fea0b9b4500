"""The audit trail: appending, against the same insert without a chain, and verifying.

Target: append at least 0.5 of the insert; verify at least 200,000 entries a second.
"""

from __future__ import annotations

from datetime import UTC, datetime

from benchmarks._benchmark_harness import compare, product, seconds

NUMBER = 500
MANY = 50_000


def main() -> None:
    from django.db import connection, transaction

    from apps.audit import services as audit
    from apps.audit import verification
    from apps.audit.services import Action
    from apps.core.actor import Actor

    now = datetime.now(UTC)

    def append() -> None:
        for place in range(NUMBER):
            audit.record(
                action=Action.KEY_CREATED,
                subject=f"api_key:{place}",
                actor=Actor.user("anna"),
                now=now,
                reason="a reason of some length",
                detail={"scopes": ["a", "b"], "n": place},
            )

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE bare (LIKE audit_entry INCLUDING ALL)")

    def insert() -> None:
        record = '{"at_us":1,"actor":"user:anna","action":"x","detail":{"n":1}}'
        for _ in range(NUMBER):
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO bare (seq, record, hash) SELECT"
                    " coalesce(max(seq), 0) + 1, %s, sha256('x') FROM bare",
                    [record],
                )

    compare(
        "append", number=NUMBER, ours=append, baseline=insert, named="without a chain"
    )
    while verification.verify().entries < MANY:
        _lengthen()
    took = seconds(verification.verify)
    entries = verification.verify().entries
    print(f"verify: {entries / took:,.0f} entries/s")


def _lengthen() -> None:
    """Add ten thousand entries to the audit trail in one transaction."""
    from django.db import transaction

    from apps.audit import services as audit
    from apps.audit.services import Action
    from apps.core.actor import Actor

    with transaction.atomic():
        for place in range(10_000):
            audit.record(
                action=Action.KEY_CREATED,
                subject=f"api_key:{place}",
                actor=Actor.user("anna"),
                now=datetime.now(UTC),
                detail={"n": place},
            )


if __name__ == "__main__":
    with product():
        main()
