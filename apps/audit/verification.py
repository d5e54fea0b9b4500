"""Verify the audit chain against any change that the owner of its tables could make.

It reads exactly what pages read: the same relations, and each of their columns.
Functions are looked up in pg_catalog only, regardless of search_path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from django.db import DataError, connection, transaction

# The hash that the first entry follows.
START: Final = hashlib.sha256(b"poisonweb").digest()
MAX_SEQ: Final = 2**63 - 1
ENTRIES: Final = "audit_entry"
HEAD: Final = "audit_head"
# The columns read below, with their types.
SHAPES: Final = {
    ENTRIES: {
        "seq": "bigint",
        "record": "text",
        "hash": "bytea",
        "at": "timestamp with time zone",
        "actor": "text",
        "action": "text",
        "subject": "text",
        "reason": "text",
        "source": "text",
        "detail": "jsonb",
    },
    HEAD: {"seq": "bigint", "hash": "bytea"},
}
# The expressions of our migration, as Postgres 15 to 18 print them.
GENERATED: Final = {
    "at": "to_timestamp(((((((record)::jsonb ->> 'at_us'::text))::bigint)::numeric"
    " / '1000000'::numeric))::double precision)",
    "actor": "((record)::jsonb ->> 'actor'::text)",
    "action": "((record)::jsonb ->> 'action'::text)",
    "subject": "((record)::jsonb ->> 'subject'::text)",
    "reason": "((record)::jsonb ->> 'reason'::text)",
    "source": "((record)::jsonb ->> 'source'::text)",
    "detail": "((record)::jsonb -> 'detail'::text)",
}
GUARD: Final = "audit_entry_append_only"
# pg_class.relkind of a plain table, not a view or a foreign table.
TABLE: Final = "r"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainVerdict:
    """The result of verifying the chain; `first_bad` is the seq of the first bad entry.

    Troubles without a `first_bad` concern the table itself, not an entry.
    """

    entries: int
    first_bad: int | None
    head: str
    troubles: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.troubles


@dataclass(frozen=True, kw_only=True, slots=True)
class _Relation:
    """A relation with the name of one of our tables, on the search path."""

    schema: str
    name: str
    oid: int
    kind: str
    row_security: bool

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Walk:
    """The facts of one walk along the chain, in one snapshot."""

    entries: int
    first_broken: int | None
    first_mismatched: int | None
    last: tuple[int, bytes] | None
    heads: Sequence[tuple[int, bytes]]

    @property
    def head(self) -> str:
        """Return the hash that ends the audit chain, in hex; "" without a head."""
        return self.heads[0][1].hex() if self.heads else ""


def verify() -> ChainVerdict:
    """Recompute the whole audit chain in the database; no content makes it raise."""
    with transaction.atomic(), _search_path() as schemas:
        relations = _relations(schemas)
        absent = [f"There is no table {name}." for name in SHAPES.keys() - relations]
        if absent:
            return _unwalkable(absent)
        entries, head = relations[ENTRIES][0], relations[HEAD][0]
        impostors = [*_find_impostors(relations)]
        wrong_columns = [*_wrong_columns(entries), *_wrong_columns(head)]
        if wrong_columns:
            return _unwalkable([*impostors, *wrong_columns])
        return _verify_walk(entries, head, [*impostors, *_changes_of(entries)])


def hashes_of(seqs: Sequence[int]) -> dict[int, bytes]:
    """Return the hashes of those of these audit entries that exist."""
    return dict(_select_hashes("seq = ANY (%s)", [*seqs]))


def has_hash(digest: bytes) -> bool:
    """Tell whether the audit chain has this hash anywhere, its fixed start included."""
    return digest == START or bool(_select_hashes("hash = %s", digest))


def _select_hashes(condition: str, value: bytes | list[int]) -> list[tuple[int, bytes]]:
    """Return (seq, hash) of the audit entries that meet a condition in SQL."""
    with transaction.atomic(), _search_path() as schemas:
        entries = _relations(schemas).get(ENTRIES)
        if not entries or [*_wrong_columns(entries[0])]:
            return []
        table = _quoted_name(entries[0])
        statement = f"SELECT seq, hash FROM {table} WHERE {condition}"  # noqa: S608 - ours
        with connection.cursor() as cursor:
            cursor.execute(statement, [value])
            return [(seq, bytes(digest)) for seq, digest in cursor.fetchall()]


def _unwalkable(troubles: Iterable[str]) -> ChainVerdict:
    """Return the verdict on audit tables that cannot be read as a chain."""
    return ChainVerdict(entries=0, first_bad=None, head="", troubles=tuple(troubles))


def _verify_walk(
    entries: _Relation, head: _Relation, structure: list[str]
) -> ChainVerdict:
    """Walk the audit chain; return the verdict, with the troubles of the tables."""
    unreadable = None
    try:
        walk = _walk(entries, head)
    except DataError:
        unreadable = _first_unreadable(entries, head)
        walk = _walk(entries, head, upto=unreadable - 1)
    first_bad, how = _first_bad(walk, unreadable)
    bad_entry = [] if first_bad is None else [f"Entry {first_bad} {how}."]
    return ChainVerdict(
        entries=walk.entries,
        first_bad=first_bad,
        head=walk.head,
        troubles=(*bad_entry, *_head_troubles(walk), *structure),
    )


@contextmanager
def _search_path() -> Iterator[list[str]]:
    """Look up the verification's SQL names in pg_catalog only.

    Yields the schemas of the search path before, which is set again afterwards.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_catalog.current_schemas(true),"
            " pg_catalog.current_setting('search_path')"
        )
        schemas, search_path = cursor.fetchone()
        cursor.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        yield schemas
        # The transaction may be the caller's, which needs its own search_path.
        cursor.execute("SELECT set_config('search_path', %s, true)", [search_path])


_RELATIONS = """
SELECT nspname, relname, pg_class.oid, relkind::text, relrowsecurity
FROM unnest(%s::text[]) WITH ORDINALITY AS path (schema, place)
JOIN pg_namespace ON nspname = schema
JOIN pg_class ON relnamespace = pg_namespace.oid
WHERE relname = ANY (%s) ORDER BY place
"""


def _relations(schemas: list[str]) -> dict[str, list[_Relation]]:
    """Find all relations that pages could read as audit tables, in search order."""
    by_name: dict[str, list[_Relation]] = {}
    with connection.cursor() as cursor:
        cursor.execute(_RELATIONS, [schemas, [ENTRIES, HEAD]])
        for schema, name, oid, kind, row_security in cursor.fetchall():
            relation = _Relation(
                schema=schema, name=name, oid=oid, kind=kind, row_security=row_security
            )
            by_name.setdefault(name, []).append(relation)
    return by_name


def _find_impostors(by_name: dict[str, list[_Relation]]) -> Iterator[str]:
    """Describe relations that hide the audit tables or are no plain tables."""
    for first, *others in by_name.values():
        if others:
            hidden = ", ".join(str(each) for each in others)
            yield f"{first} hides {hidden}: it comes earlier in search_path."
        if first.kind != TABLE:
            yield f"{first} is not a table."
        if first.row_security:
            yield f"{first} has row security, which can hide entries."


_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), attgenerated::text,
       pg_get_expr(adbin, adrelid)
FROM pg_attribute
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
"""


def _columns(relation: _Relation) -> dict[str, tuple[str, ...]]:
    """Return each audit column's type, whether it is generated, and expression."""
    with connection.cursor() as cursor:
        cursor.execute(_COLUMNS, [relation.oid])
        return {name: tuple(rest) for name, *rest in cursor.fetchall()}


def _wrong_columns(relation: _Relation) -> Iterator[str]:
    """Describe audit columns that are missing or of another type."""
    columns = _columns(relation)
    for name, kind in SHAPES[relation.name].items():
        if name not in columns:
            yield f"{relation} has no column {name}."
        elif columns[name][0] != kind:
            yield f"The column {name} of {relation} is not of the type {kind}."


_GUARDED = """
SELECT EXISTS (
    SELECT FROM pg_trigger
    WHERE tgrelid = %s AND tgname = %s AND tgenabled IN ('O', 'A')
)
"""


def _changes_of(entries: _Relation) -> Iterator[str]:
    """Describe where an audit table differs from what our migrations created."""
    if entries.kind != TABLE:
        return
    columns = _columns(entries)
    for name, expression in GENERATED.items():
        if columns[name][1:] != ("s", expression):
            yield f"The column {name} is not generated from the record."
    with connection.cursor() as cursor:
        cursor.execute(_GUARDED, [entries.oid, GUARD])
        if not cursor.fetchone()[0]:
            yield "The trigger that refuses changes of entries is off or was removed."


def _first_bad(walk: _Walk, unreadable: int | None) -> tuple[int | None, str]:
    """Pick the first of the bad audit entries that a walk found; say what is wrong."""
    candidates = [
        (walk.first_broken, "does not follow from the one before it"),
        (walk.first_mismatched, "shows in its columns what its record does not say"),
        (unreadable, "has a record that cannot be read"),
        (None, "") if unreadable else _bad_end(walk),
    ]
    bad = [(seq, how) for seq, how in candidates if seq is not None]
    return min(bad, key=lambda pair: pair[0], default=(None, ""))


def _bad_end(walk: _Walk) -> tuple[int | None, str]:
    """Return the bad entry at the audit chain's end, and what is wrong with it."""
    if len(walk.heads) != 1:
        return None, ""
    head_seq, head_hash = walk.heads[0]
    last_seq, last_hash = walk.last or (0, None)
    if last_seq < head_seq:
        return last_seq + 1, f"is missing: the head of the chain is entry {head_seq}"
    if last_seq > head_seq:
        return head_seq + 1, f"was added: the head of the chain is entry {head_seq}"
    if last_hash is not None and last_hash != head_hash:
        return last_seq, "is not the one that the head of the chain names"
    return None, ""


def _head_troubles(walk: _Walk) -> Iterator[str]:
    """Describe it if the table of the audit chain's head has no row, or several."""
    if len(walk.heads) != 1:
        number = len(walk.heads) or "no"
        yield f"{HEAD} has {number} rows instead of one: where the chain ends is lost."


# OFFSET 0 makes Postgres parse each record once for all of its columns.
_WALK = """
WITH walked AS (
    SELECT *, lag(hash, 1, sha256('poisonweb')) OVER along AS before,
           row_number() OVER along AS place
    FROM {entries} WHERE seq <= %s WINDOW along AS (ORDER BY seq)
), judged AS (
    SELECT seq, place, hash = sha256(before || convert_to(record, 'UTF8'))
           AND seq = place AND (doc ->> 'seq')::bigint = seq AS follows,
           at = to_timestamp((doc ->> 'at_us')::bigint / 1e6)
           AND actor IS NOT DISTINCT FROM doc ->> 'actor'
           AND action IS NOT DISTINCT FROM doc ->> 'action'
           AND subject IS NOT DISTINCT FROM doc ->> 'subject'
           AND reason IS NOT DISTINCT FROM doc ->> 'reason'
           AND source IS NOT DISTINCT FROM doc ->> 'source'
           AND detail IS NOT DISTINCT FROM doc -> 'detail' AS agrees
    FROM walked CROSS JOIN LATERAL (SELECT record::jsonb AS doc OFFSET 0) parsed
)
SELECT count(*), min(place) FILTER (WHERE follows IS NOT TRUE),
       min(place) FILTER (WHERE agrees IS NOT TRUE),
       (SELECT ARRAY[seq::text, encode(hash, 'hex')] FROM {entries}
        ORDER BY seq DESC LIMIT 1),
       (SELECT array_agg(ARRAY[seq::text, encode(hash, 'hex')]) FROM {head})
FROM judged
"""


def _walk(entries: _Relation, head: _Relation, *, upto: int = MAX_SEQ) -> _Walk:
    """Recompute the audit chain up to an entry; return its first faults and its ends.

    Raises DataError if the record of an entry is no JSON.
    """
    statement = _WALK.format(entries=_quoted_name(entries), head=_quoted_name(head))
    # A savepoint: the transaction continues after a record that cannot be read.
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement, [upto])
        number, first_broken, first_mismatched, last, heads = cursor.fetchone()
    return _Walk(
        entries=number,
        first_broken=first_broken,
        first_mismatched=first_mismatched,
        last=_parse_end(last) if last else None,
        heads=[_parse_end(each) for each in heads or ()],
    )


def _quoted_name(relation: _Relation) -> str:
    """Return the quoted name of an audit relation, for SQL."""
    quote = connection.ops.quote_name
    return f"{quote(relation.schema)}.{quote(relation.name)}"


def _parse_end(pair: Sequence[str]) -> tuple[int, bytes]:
    """Parse [seq, hash in hex] of an end of the audit chain."""
    seq, digest = pair
    return int(seq), bytes.fromhex(digest)


def _first_unreadable(entries: _Relation, head: _Relation) -> int:
    """Find by bisection the first audit entry that Postgres cannot read."""
    low, high = 0, MAX_SEQ
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _walk(entries, head, upto=middle)
        except DataError:
            high = middle
        else:
            low = middle
    return high
