"""List, add, change and remove outboxes; read and decide about their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import ClassVar

from django.urls import reverse
from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.keyset_pagination import PageWindow
from apps.api.openapi import PAGING, describe_call
from apps.api.selectors import outboxes
from apps.api.serializers import outboxes as serializers
from apps.api.views.base import View, list_response
from apps.core import clock
from apps.core.errors import Absent
from apps.outbox import outbox_row_decisions, table_inspection
from apps.outbox.models import Outbox as OutboxModel
from apps.outbox.services import outbox_registration as services
from apps.outbox.services import row_decisions
from apps.team.rights import Principal, Scope

MOST_ROWS = 200
REFUSED_CHANGE = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)


class Outboxes(View):
    scopes: ClassVar = {"GET": Scope.BROKERS_READ, "POST": Scope.BROKERS_WRITE}

    @describe_call(
        "listOutboxes",
        "List the outboxes, with what their sweepers do",
        answer=serializers.Outboxes,
        parameters=PAGING,
        refusals=[HTTPStatus.BAD_REQUEST],
    )
    def get(self, request: Request) -> Response:
        """Lists outboxes. A key sees those whose topic `outbox/NAME` it is for."""
        window = PageWindow.parse(request, name="outboxes")
        page, details = outboxes.find(window, self.principal, now=clock.now())
        return list_response(page, serializers.Outbox(details, many=True).data)

    @describe_call(
        "addOutbox",
        "Add an outbox",
        request=serializers.NewOutbox,
        answer=serializers.AddedOutbox,
        refusals=REFUSED_CHANGE,
    )
    def post(self, request: Request) -> Response:
        """Adds an outbox. A sweeper begins within a second; a name in use is a 409."""
        new, now = serializers.NewOutbox.parse(request.data), clock.now()
        outbox = services.add_outbox(**new, principal=self.principal, now=now)
        detail = outboxes.one(outbox.pk, self.principal, now=now)
        return Response(
            serializers.Outbox(detail).data,
            status=HTTPStatus.CREATED,
            headers={"Location": reverse("api-outbox", args=[outbox.pk])},
        )


class Outbox(View):
    scopes: ClassVar = {
        "GET": Scope.BROKERS_READ,
        "PATCH": Scope.BROKERS_WRITE,
        "DELETE": Scope.BROKERS_WRITE,
    }

    @describe_call(
        "getOutbox",
        "Show one outbox",
        answer=serializers.Outbox,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def get(self, _: Request, outbox_id: int) -> Response:
        detail = outboxes.one(outbox_id, self.principal, now=clock.now())
        return Response(serializers.Outbox(detail).data)

    @describe_call(
        "changeOutbox",
        "Change an outbox's settings",
        request=serializers.OutboxChange,
        answer=serializers.Outbox,
        refusals=REFUSED_CHANGE,
    )
    def patch(self, request: Request, outbox_id: int) -> Response:
        """Changes an outbox, all or nothing; members left out stay as they are."""
        change, now = serializers.OutboxChange.parse(request.data), clock.now()
        services.change_outbox(
            name=outboxes.visible(outbox_id, self.principal).name,
            **change,
            principal=self.principal,
            now=now,
        )
        detail = outboxes.one(outbox_id, self.principal, now=now)
        return Response(serializers.Outbox(detail).data)

    @describe_call(
        "removeOutbox",
        "Remove an outbox; its table stays",
        request=serializers.OutboxRemoval,
        answer=serializers.Outbox,
        refusals=REFUSED_CHANGE,
    )
    def delete(self, request: Request, outbox_id: int) -> Response:
        """Removes an outbox; its topic stays, because its messages do."""
        removal, now = serializers.OutboxRemoval.parse(request.data), clock.now()
        detail = outboxes.one(outbox_id, self.principal, now=now)
        services.remove_outbox(
            name=detail.outbox.name, **removal, principal=self.principal, now=now
        )
        return Response(serializers.Outbox(detail).data)


class OutboxRowList(View):
    scopes: ClassVar = {"GET": Scope.POISONS_READ}

    @describe_call(
        "listOutboxRows",
        "List rows of an outbox, the newest first",
        answer=serializers.OutboxRows,
        parameters=[serializers.RowsQuery],
        refusals=(
            HTTPStatus.NOT_FOUND,
            HTTPStatus.CONFLICT,
            HTTPStatus.UNPROCESSABLE_ENTITY,
        ),
    )
    def get(self, request: Request, outbox_id: int) -> Response:
        """Reads at most 200 outbox rows in the producer's database, in two seconds."""
        filters = serializers.RowsQuery.parse_query(request.query_params)
        outbox = outboxes.visible(outbox_id, self.principal)
        hidden = services.hidden_topics(outbox, self.principal)
        filters = replace(filters, hidden_topics=hidden)
        rows = outbox_row_decisions.find(outbox, filters, most=MOST_ROWS + 1)
        more = len(rows) > MOST_ROWS
        answer = {
            "results": rows[:MOST_ROWS],
            "next_before": rows[MOST_ROWS - 1].row_id if more else None,
        }
        return Response(serializers.OutboxRows(answer).data)


class Findings(View):
    scopes: ClassVar = {"GET": Scope.BROKERS_READ}

    @describe_call(
        "inspectOutbox",
        "Say what is wrong with the tables of an outbox",
        answer=serializers.TableFindings,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def get(self, _: Request, outbox_id: int) -> Response:
        """Checks an outbox's tables, columns, rights, index, trigger and connection."""
        outbox = outboxes.visible(outbox_id, self.principal)
        answer = table_inspection.findings(
            url=outbox.url,
            schema=outbox.schema,
            for_manager=self.principal.may(Scope.BROKERS_WRITE),
        )
        return Response(serializers.TableFindings({"findings": answer}).data)


class SendRow(View):
    scopes: ClassVar = {"POST": Scope.OPERATIONS_WRITE}

    @describe_call(
        "sendOutboxRow",
        "Send a quarantined row all the same",
        request=serializers.RowDecision,
        answer=serializers.OutboxRow,
        refusals=REFUSED_CHANGE,
    )
    def post(self, request: Request, outbox_id: int, row_id: int) -> Response:
        """Has an outbox row sent, whatever else has its message id; twice is a 409."""
        outbox = outboxes.visible(outbox_id, self.principal)
        return _decide(row_decisions.send_row, request, self.principal, outbox, row_id)


class DropRow(View):
    scopes: ClassVar = {"POST": Scope.OPERATIONS_WRITE}

    @describe_call(
        "dropOutboxRow",
        "Drop a quarantined row",
        request=serializers.RowDecision,
        answer=serializers.OutboxRow,
        refusals=REFUSED_CHANGE,
    )
    def post(self, request: Request, outbox_id: int, row_id: int) -> Response:
        """Drops an outbox row: it stays in its table, unsent; twice is a 409."""
        outbox = outboxes.visible(outbox_id, self.principal)
        return _decide(row_decisions.drop_row, request, self.principal, outbox, row_id)


def _decide(
    decide: Callable[..., None],
    request: Request,
    principal: Principal,
    outbox: OutboxModel,
    row_id: int,
) -> Response:
    """Send or drop a quarantined outbox row; answer with the row as it is now.

    Raises Absent if the row is not there any more.
    """
    decision = serializers.RowDecision.parse(request.data)
    decide(
        outbox=outbox, row_id=row_id, principal=principal, now=clock.now(), **decision
    )
    hidden = services.hidden_topics(outbox, principal)
    row = outbox_row_decisions.one(outbox, row_id, hidden)
    if row is None:
        raise Absent(f"There is no row {row_id} of {outbox} any more.")
    return Response(serializers.OutboxRow(row).data)
