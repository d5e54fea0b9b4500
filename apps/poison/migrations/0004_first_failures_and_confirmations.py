"""Fill in what the rows that are there can still tell.

A confirmation that came back before this was overwritten by that, and is lost to it.
"""

from __future__ import annotations

from django.db import migrations

MARK_FIRST_FAILURES = """
UPDATE poison_failure SET is_first = true
WHERE id IN (SELECT min(id) FROM poison_failure GROUP BY poison_id)
"""

NOTE_CONFIRMATIONS = """
UPDATE poison_redrive SET confirmed_at = answered_at WHERE outcome = 'confirmed'
"""


class Migration(migrations.Migration):
    dependencies = [("poison", "0003_facts_for_reports")]

    operations = [
        migrations.RunSQL(MARK_FIRST_FAILURES, migrations.RunSQL.noop),
        migrations.RunSQL(NOTE_CONFIRMATIONS, migrations.RunSQL.noop),
    ]
