"""A web of release 9a46585 cancels the previews that another one replaces.

Here `cancelled` is the end of a confirmed operation, and a check refuses it for a
preview: the web would answer 500 where somebody previews the same twice. The preview
expires instead, as those did that were there before the upgrade.
"""

from __future__ import annotations

from django.db import migrations

from apps.core.schema_changes import LockTimeoutMigration

CREATE = """
CREATE FUNCTION triage_preview_was_replaced() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.state := 'preview';
    NEW.finished_at := NULL;
    NEW.expires_at := least(NEW.expires_at, now());
    RETURN NEW;
END $$;
CREATE TRIGGER triage_preview_replaced_by_earlier_webs
    BEFORE UPDATE OF state ON triage_operation FOR EACH ROW
    WHEN (NEW.state = 'cancelled' AND NEW.confirmed_at IS NULL)
    EXECUTE FUNCTION triage_preview_was_replaced();
"""
DROP = """
DROP TRIGGER triage_preview_replaced_by_earlier_webs ON triage_operation;
DROP FUNCTION triage_preview_was_replaced;
"""


class Migration(LockTimeoutMigration):
    dependencies = [("triage", "0007_redirects")]

    operations = [
        migrations.RunSQL(CREATE, DROP),
    ]
