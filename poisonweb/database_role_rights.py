"""Grant the rights of the application's database role, which owns no table.

The owner of the tables migrates. The application's role creates only temporary tables:
an attacker who takes over a process cannot alter, empty or remove a table, nor change
an entry of the audit trail or its triggers.
"""

from __future__ import annotations

from typing import Final

from django.apps import apps
from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper
from psycopg import sql

from apps.audit.models import Entry, Head
from apps.capture.daily_partition_creation import MAKER
from apps.core import advisory_locks
from apps.core.errors import Invalid, Refused
from apps.reports.services.publishing import STAGED
from apps.triage.services.earlier_layout_conversion import EARLIER_ITEMS

MIGRATIONS: Final = "django_migrations"
# Of `ResourceLock`, which senders use.
LOCK_QUEUES: Final = ("poisonguard_lock_resources", "poisonguard_lock_tickets")
USUAL: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
# Tables with fewer rights.
RIGHTS: Final = {
    Entry._meta.db_table: ("SELECT", "INSERT"),  # noqa: SLF001 - Django's own way
    Head._meta.db_table: ("SELECT", "UPDATE"),  # noqa: SLF001
    MIGRATIONS: ("SELECT",),
}
NAME_LIMIT: Final = 63

_ROLE = """
SELECT rolsuper, rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls,
       pg_has_role(
           oid, (SELECT o.oid FROM pg_roles o WHERE o.rolname = current_user), 'MEMBER'
       ),
       has_schema_privilege(oid, current_schema()::regnamespace, 'CREATE')
       OR has_database_privilege(oid, current_database(), 'CREATE'),
       EXISTS (SELECT FROM pg_class WHERE relowner = pg_roles.oid
               AND relnamespace = current_schema()::regnamespace)
FROM pg_roles WHERE rolname = %s
"""
_SEQUENCES = """
SELECT sequence.relname FROM pg_class AS sequence
JOIN pg_depend ON pg_depend.objid = sequence.oid AND deptype IN ('a', 'i')
              AND pg_depend.classid = 'pg_class'::regclass
JOIN pg_class AS main ON main.oid = pg_depend.refobjid
WHERE sequence.relkind = 'S' AND main.relname = ANY (%s)
  AND sequence.relnamespace = current_schema()::regnamespace
ORDER BY sequence.relname
"""
_PARTITIONS = """
SELECT main.relname FROM pg_class AS main
JOIN pg_inherits ON inhrelid = main.oid
JOIN pg_class AS parent ON parent.oid = inhparent
WHERE main.relispartition AND parent.relname = ANY (%s) AND main.relkind = 'r'
  AND main.relnamespace = current_schema()::regnamespace
ORDER BY main.relname
"""
_OWNS = """
SELECT pg_has_role(current_user, relowner, 'MEMBER')
FROM pg_class WHERE oid = to_regclass(%s)
"""


def tables() -> list[str]:
    """Return the names of all tables that the application uses."""
    models = apps.get_models(include_auto_created=True)
    ours = {model._meta.db_table for model in models}  # noqa: SLF001 - Django's own way
    return sorted({*ours, *STAGED, *LOCK_QUEUES, EARLIER_ITEMS, MIGRATIONS})


def owns_tables() -> bool:
    """Check whether the database role of this process owns the audit trail."""
    with connection.cursor() as cursor:
        cursor.execute(_OWNS, [Entry._meta.db_table])  # noqa: SLF001
        row = cursor.fetchone()
    return bool(row and row[0])


@transaction.atomic
def grant(*, role: str, password: str | None = None) -> None:
    """Grant a role the rights of the application, and revoke all others.

    With a password, create the role if it is missing, or set its password. Raises
    Refused for a role that could do more. Repeat it after every migration, because new
    tables need new rights.
    """
    if not 0 < len(role.encode()) <= NAME_LIMIT:
        raise Invalid("role", f"give a name of 1 to {NAME_LIMIT} bytes")
    advisory_locks.wait_for("application role")
    with connection.cursor() as cursor:
        if password is not None:
            _set_password(cursor, role, password)
        _grant(cursor, role)
        _refuse_powerful(cursor, role)


def _set_password(cursor: CursorWrapper, role: str, password: str) -> None:
    """Create a Postgres role or change its password; send Postgres only a verifier."""
    cursor.execute("SELECT FROM pg_roles WHERE rolname = %s", [role])
    verb = sql.SQL("ALTER ROLE" if cursor.fetchone() is not None else "CREATE ROLE")
    # Send only the verifier of the password: Postgres may log the statement.
    encrypt = cursor.connection.pgconn.encrypt_password
    verifier = encrypt(password.encode(), role.encode(), b"scram-sha-256").decode()
    cursor.execute(
        sql.SQL("{} {} LOGIN PASSWORD {}").format(
            verb, sql.Identifier(role), sql.Literal(verifier)
        )
    )


def _grant(cursor: CursorWrapper, role: str) -> None:
    """Grant a role exactly its rights on each table, partition and sequence."""
    cursor.execute("SELECT current_schema(), current_database()")
    schema, database = map(sql.Identifier, cursor.fetchone())
    grantee = sql.Identifier(role)
    cursor.execute("SELECT FROM pg_roles WHERE rolname = %s", [role])
    if cursor.fetchone() is None:
        raise Invalid("role", f"there is no role {role}: make it, or give a password")
    for kind in ("TABLES", "SEQUENCES", "FUNCTIONS"):
        _execute(
            cursor,
            f"REVOKE ALL ON ALL {kind} IN SCHEMA {{}} FROM {{}}",
            schema,
            grantee,
        )
    _execute(cursor, "GRANT CONNECT, TEMPORARY ON DATABASE {} TO {}", database, grantee)
    _execute(cursor, "GRANT USAGE ON SCHEMA {} TO {}", schema, grantee)
    names = tables()
    for name in names:
        rights = ", ".join(RIGHTS.get(name, USUAL))
        table = sql.Identifier(name)
        _execute(cursor, f"GRANT {rights} ON {{}}.{{}} TO {{}}", schema, table, grantee)
    # The nightly report reads partitions by their own names; writes go through the
    # parent table.
    cursor.execute(_PARTITIONS, [names])
    for (name,) in cursor.fetchall():
        table = sql.Identifier(name)
        _execute(cursor, "GRANT SELECT ON {}.{} TO {}", schema, table, grantee)
    cursor.execute(_SEQUENCES, [names])
    for (name,) in cursor.fetchall():
        sequence = sql.Identifier(name)
        _execute(
            cursor, "GRANT USAGE ON SEQUENCE {}.{} TO {}", schema, sequence, grantee
        )
    maker = sql.SQL(MAKER)
    _execute(cursor, "GRANT EXECUTE ON FUNCTION {}.{} TO {}", schema, maker, grantee)


def _execute(cursor: CursorWrapper, statement: str, *names: sql.Composable) -> None:
    """Execute a GRANT or REVOKE statement, with the quoted names put into it."""
    cursor.execute(sql.SQL(statement).format(*names))


def _refuse_powerful(cursor: CursorWrapper, role: str) -> None:
    """Raise Refused if the role of Poisonweb's processes could bypass its rights."""
    cursor.execute(_ROLE, [role])
    is_super, is_powerful, is_owner, creates, owns = cursor.fetchone()
    obstacles = {
        "it is a superuser": is_super,
        "it is the owner of the tables, or a member of that role": is_owner,
        "it owns a table": owns,
        "it may create roles or databases, replicate, or pass over row security": (
            is_powerful
        ),
        "it, or everybody, may CREATE in the schema or database: REVOKE that first": (
            creates
        ),
    }
    for obstacle, is_there in obstacles.items():
        if is_there:
            raise Refused(f"{role} cannot be the application's role: {obstacle}.")
