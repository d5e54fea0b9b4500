"""Nobody edits the trail: not the application, not even the owner of its table."""

from __future__ import annotations

from django.db import migrations

START = """
INSERT INTO audit_head (id, seq, hash) VALUES (1, 0, sha256('poisonweb'));
"""

# The trigger also stops a superuser, whom no REVOKE binds.
GUARD = """
CREATE FUNCTION audit_entry_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit entries are never changed or removed'
        USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER audit_entry_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_entry
    FOR EACH STATEMENT EXECUTE FUNCTION audit_entry_is_append_only();
REVOKE UPDATE, DELETE, TRUNCATE ON audit_entry FROM PUBLIC, CURRENT_USER;
"""

UNGUARD = """
DROP TRIGGER audit_entry_append_only ON audit_entry;
DROP FUNCTION audit_entry_is_append_only();
GRANT UPDATE, DELETE, TRUNCATE ON audit_entry TO CURRENT_USER;
"""


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]

    operations = [
        migrations.RunSQL(START, "DELETE FROM audit_head"),
        migrations.RunSQL(GUARD, UNGUARD),
    ]
