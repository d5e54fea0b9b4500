"""Outboxes and their rows; settings are derived from `apps.outbox.outbox_fields`."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from apps.api.serializers.base import (
    NAME_LIMIT,
    OPTIONAL,
    AnyField,
    List,
    Moment,
    Name,
    Number,
    NumberOfAddress,
    QuerySchema,
    ReasonText,
    RequestSchema,
    Schema,
    Text,
    choice,
)
from apps.api.serializers.declared_settings import SettingFields, read_from_source
from apps.outbox.models import OUTBOX_NAME_LIMIT
from apps.outbox.outbox_fields import SETTINGS
from apps.outbox.outbox_row_decisions import MOST_ROW_ID, RowFilter, RowState
from apps.outbox.outbox_settings_dataclass import OutboxSettings
from apps.outbox.sweeper_and_row_states import SweeperState
from apps.outbox.sweeper_state_for_pages import SILENT

LARGEST_VERSION = 2**31 - 1

setting_fields = SettingFields("Outbox", SETTINGS)
SweeperStateName = choice(
    "OutboxState", [*(each.value for each in SweeperState), SILENT]
)
RowStateName = choice("OutboxRowState", [each.value for each in RowState])


class NewOutbox(RequestSchema[dict[str, Any]]):
    name = Name(
        max_length=OUTBOX_NAME_LIMIT,
        help_text="part of its topic, outbox/NAME: small letters, digits, dots, hyphens"
        " and underscores",
    )
    reason = ReasonText(help_text="recorded in the audit trail")

    def get_fields(self) -> dict[str, AnyField]:
        settings = setting_fields(required=False)
        settings["url"].required = settings["broker"].required = True
        return {**super().get_fields(), **settings}

    def value_of(self, members: dict[str, Any]) -> dict[str, Any]:
        name, reason = members.pop("name"), members.pop("reason")
        return {"name": name, "reason": reason, "settings": OutboxSettings(**members)}


class OutboxChange(RequestSchema[dict[str, Any]]):
    version = Number(
        **OPTIONAL,
        min_value=1,
        max_value=LARGEST_VERSION,
        help_text="as it was read: refused where it was changed after that",
    )
    reason = ReasonText(help_text="recorded in the audit trail")

    def get_fields(self) -> dict[str, AnyField]:
        return {**super().get_fields(), **setting_fields(required=False)}

    def value_of(self, members: dict[str, Any]) -> dict[str, Any]:
        return {
            "version": members.pop("version"),
            "reason": members.pop("reason"),
            "changes": members,
        }


class OutboxRemoval(RequestSchema[dict[str, str]]):
    reason = ReasonText(help_text="recorded in the audit trail")


class RowsQuery(QuerySchema[RowFilter]):
    state = RowStateName(**OPTIONAL)
    message_id = Text(
        default="", allow_blank=True, max_length=NAME_LIMIT, help_text="the whole id"
    )
    topic = Text(
        default="", allow_blank=True, max_length=NAME_LIMIT, help_text="the whole name"
    )
    before = NumberOfAddress(
        **OPTIONAL,
        min_value=0,
        max_value=MOST_ROW_ID,
        help_text="the `next_before` of an earlier answer",
    )

    def value_of(self, members: dict[str, Any]) -> RowFilter:
        state = members.pop("state")
        return RowFilter(state=state and RowState(state), **members)


class RowDecision(RequestSchema[dict[str, str]]):
    reason = ReasonText(help_text="recorded in the audit trail")


class SweeperError(Schema):
    """Errors of one kind at one step of sweeping."""

    step = Text()
    kind = Text()
    count = Number(help_text="since the outbox was added")
    first_at = Moment()
    last_at = Moment()
    message = Text(help_text="of the last one")
    first_stack = Text(help_text="of the first one")


class SweeperActivity(Schema):
    """What the sweeper noted last; its counts of rows are those of `counted_at`."""

    state = SweeperStateName(
        help_text="silent: no sweeper has noted anything for 15 seconds"
    )
    detail = Text(source="activity.detail", help_text="why it is in this state")
    noted_at = Moment(source="activity.noted_at", allow_null=True)
    counted_at = Moment(
        source="activity.counted_at",
        allow_null=True,
        help_text="when `waiting`, `waiting_bytes`, `oldest_at` and `quarantined` were"
        " counted: earlier than `noted_at` while the table cannot be read; null before"
        " the first count, with zeros",
    )
    waiting = Number(source="activity.waiting")
    waiting_bytes = Number(source="activity.waiting_bytes")
    oldest_at = Moment(source="activity.oldest_at", allow_null=True)
    quarantined = Number(source="activity.quarantined")
    sent_count = Number(
        source="activity.sent_count", help_text="since the outbox was added"
    )
    duplicate_count = Number(
        source="activity.duplicate_count", help_text="since the outbox was added"
    )
    sent_per_second = serializers.FloatField(source="activity.sent_per_second")
    slowed = serializers.DictField(
        source="activity.slowed",
        child=Text(),
        help_text="topics that are slowed, each with its reason",
    )
    flood_rows = Number(
        source="activity.flood_rows",
        help_text="rows of one writer that were quarantined within ten minutes",
    )
    flood_writer = Text(
        source="activity.flood_writer",
        help_text="who it is: user, application and address; empty if no row was",
    )


class Outbox(Schema):
    id = Number(source="outbox.pk")
    name = Text(source="outbox.name")
    topic = Text(
        source="outbox.topic.name",
        help_text="of quarantined rows whose own topic is not registered",
    )
    address = Text(help_text="where the address of the database is stored")
    version = Number(source="outbox.version", help_text="counts its changes")
    created_at = Moment(source="outbox.created_at")
    created_by = Text(source="outbox.created_by")
    activity = SweeperActivity(source="*")
    sweeper_errors = SweeperError(
        source="errors", many=True, help_text="the latest first, 100 at most"
    )

    def get_fields(self) -> dict[str, AnyField]:
        settings = read_from_source(setting_fields(), "settings")
        del settings["url"]
        return {**super().get_fields(), **settings}


class AddedOutbox(Outbox): ...


class Outboxes(List):
    results = Outbox(many=True)


class OutboxRow(Schema):
    """A row of the producer's table; texts are cut at 1,000 characters."""

    row_id = Number()
    state = RowStateName()
    producer = Text()
    message_id = Text()
    topic = Text()
    key = Text()
    size = Number(help_text="bytes of the body")
    attempts = Number()
    created_at = Moment(allow_null=True)
    due_at = Moment(
        allow_null=True,
        help_text="of a waiting row, or the end of its claim while it is being sent;"
        " null of any other",
    )
    sent_at = Moment(allow_null=True)
    duplicate_of = Number(
        allow_null=True, help_text="the row with the same message that is sent instead"
    )
    quarantined_at = Moment(allow_null=True)
    cause = Text()
    reason = Text()
    writer_user = Text(help_text="who wrote or changed the row last")
    writer_application = Text()
    writer_address = Text()
    writer_transaction = Text()
    written_at = Moment(allow_null=True)


class TableFinding(Schema):
    """One thing that is wrong with the tables in the producer's database."""

    kind = Text()
    detail = Text()
    remedy = Text(help_text="a sentence; see `sql`")
    sql = Text(help_text="that mends it; empty where none does")
    doubled_ids = Number(
        allow_null=True, help_text="message ids of more than one row, up to 10,000"
    )
    is_blocking = serializers.BooleanField(
        help_text="whether nothing can be sent before it is mended"
    )


class TableFindings(Schema):
    findings = TableFinding(many=True)


class OutboxRows(Schema):
    results = OutboxRow(many=True)
    next_before = Number(
        allow_null=True, help_text="`before` of what follows; null at the end"
    )
