"""Partitions of days are made by a function that runs as the owner of the tables.

So the application can work as a role that owns nothing and may create nothing.
"""

from __future__ import annotations

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

# Every name in it is qualified, and pg_catalog comes first on its path: nothing that a
# caller creates can stand for what it means. It takes a day and no name.
MAKE = """
CREATE FUNCTION {schema}.poisonweb_make_partitions(first_day date) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- Nobody waits long for us.
SET lock_timeout = '4s'
AS $$
DECLARE
    parent text;
    child text;
    day date;
    has_begun boolean;
    reader name;
BEGIN
    -- Lanes and beat may both come at midnight.
    PERFORM pg_advisory_xact_lock(hashtextextended('partitions', 0));
    FOREACH parent IN ARRAY
        ARRAY['poison_failure', 'poison_body', 'capture_counter']
    LOOP
        FOR day IN SELECT first_day + ahead FROM generate_series(0, 7) AS ahead LOOP
            child := parent || to_char(day, '"_"YYYYMMDD');
            CONTINUE WHEN EXISTS (
                SELECT FROM pg_class
                WHERE relnamespace = {name}::regnamespace AND relname = child
            );
            -- A day that began in the default partition stays there.
            EXECUTE format(
                'SELECT EXISTS (SELECT FROM %I.%I WHERE day = $1)',
                {name}, parent || '_default'
            ) INTO has_begun USING day;
            CONTINUE WHEN has_begun;
            EXECUTE format(
                'CREATE TABLE %I.%I PARTITION OF %I.%I FOR VALUES FROM (%L) TO (%L)',
                {name}, child, {name}, parent, day, day + 1
            );
            -- The nightly report reads partitions by their own names.
            FOR reader IN
                SELECT rolname FROM pg_class, aclexplode(relacl) AS given, pg_roles
                WHERE relnamespace = {name}::regnamespace AND relname = parent
                  AND privilege_type = 'SELECT' AND given.grantee = pg_roles.oid
                  AND grantee <> relowner
            LOOP
                EXECUTE format('GRANT SELECT ON %I.%I TO %I', {name}, child, reader);
            END LOOP;
            RETURN NEXT child;
        END LOOP;
    END LOOP;
END $$;
REVOKE ALL ON FUNCTION {schema}.poisonweb_make_partitions(date) FROM PUBLIC;
"""


def make(_: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    with editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT quote_ident(current_schema()), quote_literal(current_schema())"
        )
        schema, name = cursor.fetchone()
    editor.execute(MAKE.format(schema=schema, name=name), params=None)


def unmake(_: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    editor.execute("DROP FUNCTION poisonweb_make_partitions(date)")


class Migration(migrations.Migration):
    dependencies = [
        ("capture", "0007_lanes_that_expect_a_queue"),
        ("poison", "0002_partitioned_by_day"),
    ]

    operations = [migrations.RunPython(make, unmake)]
