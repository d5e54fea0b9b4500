"""Give active skips by a header the name in lower case, as rules are stored from now on.

Consumers compare the names of headers without regard to case, so the skips of `Tenant`
and of `tenant` were one condition on two lists. Of active skips that differ in nothing
but the case, the one that lasts longest stays, and the others end. The release before
works with names in lower case, too: the way back changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps
from django.utils import timezone

from apps.core.schema_changes import LockTimeoutMigration
from poisonguard.skipping.content_match_rules import canonical, from_canonical

FIRST_DAY = datetime.min.replace(tzinfo=UTC)


def store_names_in_lower_case(
    apps: StateApps, _schema_editor: BaseDatabaseSchemaEditor
) -> None:
    """Rewrite the rules of all topics, each with its skip list locked."""
    rules = apps.get_model("poison", "Skip").objects.filter(
        kind="rule", removed_revision=None
    )
    lists = apps.get_model("poison", "SkipList").objects.order_by("topic")
    with_rules = lists.filter(topic__in=rules.values("topic"))
    for skip_list in with_rules.select_for_update(no_key=True, of=("self",)):
        by_condition = defaultdict(list)
        for skip in rules.filter(topic=skip_list.topic_id).order_by("pk"):
            value = _value_in_lower_case(skip)
            scope = (skip.consumer_group, skip.handler_version)
            by_condition[value, *scope].append(skip)
        for (value, *_), skips in by_condition.items():
            _keep_longest(skip_list, skips, value)
        skip_list.save(update_fields=["revision"])


def _value_in_lower_case(skip: Any) -> bytes:
    return canonical(from_canonical(bytes(skip.value).decode())).encode()


def _keep_longest(skip_list: Any, skips: Iterable[Any], value: bytes) -> None:
    """End all of these skips but the one that lasts longest, and give it this value."""
    *others, longest = sorted(skips, key=_end_of)
    for skip in others:
        skip_list.revision += 1
        skip.removed_revision = skip_list.revision
        skip.removed_at = timezone.now()
        skip.removed_by = "system:upgrade"
        skip.because = "removed"
        skip.removed_reason = f"skip {longest.pk} is by the same header"
        skip.save(
            update_fields=[
                *("removed_revision", "removed_at", "removed_by"),
                *("because", "removed_reason"),
            ]
        )
    if bytes(longest.value) != value:
        longest.value = value
        longest.save(update_fields=["value"])


def _end_of(skip: Any) -> tuple[bool, datetime, int]:
    """Return what orders skips by their end; one without an end is the last."""
    return skip.expires_at is None, skip.expires_at or FIRST_DAY, skip.pk


class Migration(LockTimeoutMigration):
    dependencies = [("poison", "0021_windows_count_deliveries")]

    operations = [
        migrations.RunPython(store_names_in_lower_case, migrations.RunPython.noop)
    ]
