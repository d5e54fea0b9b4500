"""Write decisions about messages back to their rows in a producer's database.

Other programs may have changed, deleted or claimed the row meanwhile. No statement
waits for long: a row that is locked is left for later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import psycopg

from apps.outbox.models import Outbox
from apps.outbox.outbox_row_decisions import (
    MESSAGE_ID,
    RELEASE,
    STATE,
    Quarantine,
    RowState,
    fill_table_names,
)
from apps.outbox.sweeper_and_row_states import QuarantineState
from poisonguard.outbox.message import OutboxMessage, digest
from poisonguard.outbox.sweeping.claimed_row_decoding import (
    UnreadableColumn,
    header_pairs,
)

# A longer body is not read again, so its id is not recognised once its row is deleted.
READ_BYTES = 16 * 2**20
LOCK_LIMIT = "SET LOCAL lock_timeout = '200ms'"

# A row that a sweeper cannot mark waits, and is reported as quarantined all the same.
# The outbox may have another database by now: a row has a message id, too.
_DECIDED = """
unnest(%(row_ids)s::int8[], %(message_ids)s::text[]) AS decided(row_id, message_id)
"""
_IS_IT = f"entry.row_id = decided.row_id AND {MESSAGE_ID} = decided.message_id"
_UNSENT = f"""
{_IS_IT} AND entry.sent_at IS NULL AND entry.duplicate_of IS NULL
AND (entry.quarantined_at IS NOT NULL OR entry.claim_token IS NULL)
"""
_SEND = f"""
UPDATE {{outbox}} AS entry
SET sent_at = now(), quarantined_at = NULL, dropped_at = NULL, reported_at = NULL,
    released_at = coalesce(entry.released_at, now()),
    claim_token = NULL, claimed_until = NULL
FROM {_DECIDED}
WHERE {_UNSENT}
RETURNING entry.row_id::bigint, entry.producer::text, entry.message_id::text,
    entry.topic::text, entry.key::text, entry.headers,
    CASE WHEN octet_length(entry.body) <= {READ_BYTES} THEN entry.body END
"""  # noqa: S608 - made of constants
_NOTE_SENT = """
INSERT INTO {sent} (producer, message_id, digest)
SELECT * FROM
    unnest(%(producers)s::text[], %(message_ids)s::text[], %(digests)s::bytea[])
ON CONFLICT DO NOTHING
"""
_DROP = f"""
UPDATE {{outbox}} AS entry
SET dropped_at = now(), quarantined_at = coalesce(entry.quarantined_at, now()),
    quarantine_cause = coalesce(entry.quarantine_cause, 'manual'),
    reported_at = coalesce(entry.reported_at, now())
FROM {_DECIDED}
WHERE {_UNSENT} AND entry.dropped_at IS NULL
RETURNING entry.row_id::bigint
"""  # noqa: S608
_RESTORE = f"""
UPDATE {{outbox}} AS entry SET dropped_at = NULL
FROM {_DECIDED}
WHERE {_IS_IT} AND entry.sent_at IS NULL
  AND entry.quarantined_at IS NOT NULL AND entry.dropped_at IS NOT NULL
RETURNING entry.row_id::bigint
"""  # noqa: S608
_LOOK = f"""
SELECT entry.row_id::bigint, {STATE}
FROM {{outbox}} AS entry JOIN {_DECIDED} ON {_IS_IT}
"""  # noqa: S608


def settle(
    outbox: Outbox,
    connection: psycopg.Connection[Any],
    *,
    target: QuarantineState,
    quarantines: Mapping[int, Quarantine],
) -> dict[int, QuarantineState | None]:
    """Set rows in a producer's outbox table to a decided state.

    Returns the state that each row has then, None to try later. `quarantines` are by
    row id. A row that was quarantined again after its quarantine is not released.
    """
    changed = _CHANGES[target](outbox, connection, quarantines)
    rest = {
        row_id: quarantine
        for row_id, quarantine in quarantines.items()
        if row_id not in changed
    }
    states: dict[int, QuarantineState | None] = dict.fromkeys(changed, target)
    return states | _became(outbox, connection, rest, target)


_Change = Callable[
    [Outbox, psycopg.Connection[Any], Mapping[int, Quarantine]], Collection[int]
]


def _changing(statement: str) -> _Change:
    """Return a function that changes rows in a producer's outbox by a statement.

    It changes all given rows at once, and returns the ids of those that it changed.
    """

    def change(
        outbox: Outbox,
        connection: psycopg.Connection[Any],
        quarantines: Mapping[int, Quarantine],
    ) -> Collection[int]:
        values = _values(quarantines)
        cursor = connection.execute(fill_table_names(outbox, statement), values)
        return [row_id for (row_id,) in cursor]

    return change


def _send(
    outbox: Outbox,
    connection: psycopg.Connection[Any],
    quarantines: Mapping[int, Quarantine],
) -> Collection[int]:
    """Mark rows in a producer's outbox as sent whose messages triage has sent.

    Returns their ids. Stores their message ids as well, so that a later use of one is
    noticed. Rows that have changed meanwhile are not among those returned.
    """
    changed, messages = list[int](), list[tuple[str, str, bytes]]()
    statement = fill_table_names(outbox, _SEND)
    # Bodies may be large: they are read one by one.
    for row_id, *columns in connection.cursor().stream(statement, _values(quarantines)):
        changed.append(row_id)
        message = _message(columns)
        if message is not None:
            one = (message.producer, message.message_id, digest(message))
            messages.append(one)
    if messages:
        producers, message_ids, digests = (
            list(each) for each in zip(*messages, strict=True)
        )
        connection.execute(
            fill_table_names(outbox, _NOTE_SENT),
            {"producers": producers, "message_ids": message_ids, "digests": digests},
        )
    return changed


def _release(
    outbox: Outbox,
    connection: psycopg.Connection[Any],
    quarantines: Mapping[int, Quarantine],
) -> Collection[int]:
    """Release rows in a producer's outbox one by one, as people decided on pages.

    Returns the ids of the released rows.
    """
    statement = fill_table_names(outbox, RELEASE)
    return [
        row_id
        for row_id, quarantine in quarantines.items()
        if connection.execute(
            statement,
            {
                "row_id": row_id,
                "until": quarantine.quarantined_at,
                "message_id": quarantine.message_id,
                "hidden_topics": [],
            },
        ).fetchone()
    ]


_CHANGES: Mapping[QuarantineState, _Change] = {
    QuarantineState.SENT: _send,
    QuarantineState.DROPPED: _changing(_DROP),
    QuarantineState.QUARANTINED: _changing(_RESTORE),
    QuarantineState.RELEASED: _release,
}


def _values(quarantines: Mapping[int, Quarantine]) -> dict[str, Any]:
    return {
        "row_ids": list(quarantines),
        "message_ids": [each.message_id for each in quarantines.values()],
    }


def _became(
    outbox: Outbox,
    connection: psycopg.Connection[Any],
    quarantines: Mapping[int, Quarantine],
    target: QuarantineState,
) -> dict[int, QuarantineState | None]:
    """Look up the states of a producer's outbox rows that a decision did not change.

    The state is None where a sweeper is sending the row: to try later.
    """
    if not quarantines:
        return {}
    looked_at = connection.execute(
        fill_table_names(outbox, _LOOK), _values(quarantines)
    )
    states = {row_id: RowState(state) for row_id, state in looked_at}
    return {row_id: _record_state(states.get(row_id), target) for row_id in quarantines}


def _record_state(
    state: RowState | None, target: QuarantineState
) -> QuarantineState | None:
    if state is None or target is QuarantineState.RELEASED:
        # That a row was deleted does not say that it was sent.
        return target
    if state in {RowState.SENT, RowState.DUPLICATE}:
        return QuarantineState.SENT
    if target is QuarantineState.QUARANTINED or state.value == target.value:
        return target
    # It waits, and a sweeper is sending it.
    return None


def _message(columns: Sequence[Any]) -> OutboxMessage | None:
    """Build the message of an outbox row that triage has sent, to note its digest.

    It is None where a column does not fit a message.
    """
    producer, message_id, topic, key, headers, body = columns
    texts = (producer, message_id, topic, key)
    if not isinstance(body, bytes) or not all(isinstance(each, str) for each in texts):
        return None
    try:
        pairs = header_pairs(headers)
    except (UnreadableColumn, TypeError, ValueError):
        return None
    return OutboxMessage(
        producer=producer,
        message_id=message_id,
        topic=topic,
        body=body,
        headers=pairs,
        key=key,
    )
