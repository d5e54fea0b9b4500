"""Write the names of an outbox's tables into SQL, with their schema or without."""

from __future__ import annotations

from poisonguard.outbox.sweeping.psycopg_import import sql

NAMES = {
    "outbox": "poisonguard_outbox",
    "sent": "poisonguard_outbox_sent",
    "sweeper": "poisonguard_outbox_sweeper",
    "figures": "poisonguard_outbox_figures",
}
WAITING = (
    "entry.sent_at IS NULL AND entry.duplicate_of IS NULL"
    " AND entry.quarantined_at IS NULL"
)


class Tables:
    """Write the tables of one schema into statements."""

    def __init__(self, schema: str | None) -> None:
        parts = [] if schema is None else [schema]
        names = {
            word: sql.Identifier(*parts, name).as_string(None)
            for word, name in NAMES.items()
        }
        self.outbox = names["outbox"]
        # psycopg takes a single one for the beginning of a placeholder.
        self._names = {word: name.replace("%", "%%") for word, name in names.items()}
        self._names["waiting"] = WAITING

    def fill(self, statement: str) -> str:
        """Replace `{outbox}` and other table names in SQL, which then needs values."""
        return statement.format(**self._names)
