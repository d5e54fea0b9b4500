"""The addresses under /api/v1/. Topics and bookmarks are never part of a path."""

from __future__ import annotations

from django.urls import path, re_path

from apps.api.views import (
    audit_trail,
    base,
    brokers,
    consumer_positions,
    consumer_reports,
    deliveries,
    endpoints,
    message_skips,
    nightly_failure_rates,
    openapi_reference,
    operation_previews,
    outboxes,
    poison_problems,
    poisons,
    position_moves,
    topics,
    triage_operations,
)

urlpatterns = [
    path("failures", consumer_reports.Failures.as_view()),
    path(
        "confirmations",
        consumer_reports.Confirmations.as_view(),
    ),
    path("counters", consumer_reports.Counters.as_view()),
    path("poisons", poisons.Poisons.as_view()),
    path("poisons/<int:poison_id>", poisons.Poison.as_view()),
    path("poisons/<int:poison_id>/body", poisons.Body.as_view()),
    path("problems", poison_problems.Problems.as_view()),
    path("problems/<int:problem_id>", poison_problems.Problem.as_view()),
    path("operations", triage_operations.Operations.as_view()),
    path("operations/preview", operation_previews.Preview.as_view()),
    path(
        "operations/<int:operation_id>",
        triage_operations.Operation.as_view(),
        name="api-operation",
    ),
    path(
        "operations/<int:operation_id>/items",
        triage_operations.OperationItems.as_view(),
    ),
    path(
        "operations/<int:operation_id>/pause",
        triage_operations.OperationPause.as_view(),
    ),
    path(
        "operations/<int:operation_id>/resume",
        triage_operations.OperationResume.as_view(),
    ),
    path(
        "operations/<int:operation_id>/cancel",
        triage_operations.OperationCancel.as_view(),
    ),
    path(
        "operations/<int:operation_id>/rate", triage_operations.OperationRate.as_view()
    ),
    path(
        "operations/<int:operation_id>/acknowledge",
        triage_operations.OperationAcknowledge.as_view(),
    ),
    path(
        "operations/<int:operation_id>/retry-failed",
        triage_operations.RetryFailed.as_view(),
    ),
    path("operations/<int:operation_id>/undo", triage_operations.Undo.as_view()),
    path("brokers", brokers.Brokers.as_view()),
    path("brokers/<int:broker_id>", brokers.Broker.as_view(), name="api-broker"),
    path("brokers/<int:broker_id>/test", brokers.Test.as_view()),
    path("brokers/<int:broker_id>/discover", brokers.Discover.as_view()),
    path("topics", topics.Topics.as_view()),
    path("endpoints", endpoints.Endpoints.as_view()),
    path(
        "endpoints/<int:endpoint_id>",
        endpoints.Endpoint.as_view(),
        name="api-endpoint",
    ),
    path("outboxes", outboxes.Outboxes.as_view()),
    path(
        "outboxes/<int:outbox_id>",
        outboxes.Outbox.as_view(),
        name="api-outbox",
    ),
    path(
        "outboxes/<int:outbox_id>/findings",
        outboxes.Findings.as_view(),
    ),
    path(
        "outboxes/<int:outbox_id>/rows",
        outboxes.OutboxRowList.as_view(),
    ),
    path(
        "outboxes/<int:outbox_id>/rows/<int:row_id>/send",
        outboxes.SendRow.as_view(),
    ),
    path(
        "outboxes/<int:outbox_id>/rows/<int:row_id>/drop",
        outboxes.DropRow.as_view(),
    ),
    path("deliveries", deliveries.Deliveries.as_view()),
    path("deliveries/retry", deliveries.RetryDeliveries.as_view()),
    path("deliveries/give-up", deliveries.GiveUpDeliveries.as_view()),
    path("deliveries/restore", deliveries.RestoreDeliveries.as_view()),
    path("deliveries/<uuid:delivery_id>", deliveries.SingleDelivery.as_view()),
    path("deliveries/<uuid:delivery_id>/body", deliveries.DeliveryBody.as_view()),
    path("skips", message_skips.Skips.as_view()),
    path("skips/stream", message_skips.Stream.as_view()),
    path("skips/applied", message_skips.Applied.as_view()),
    path("skips/<int:skip_id>", message_skips.Skip.as_view(), name="api-skip"),
    path("positions", consumer_positions.Positions.as_view()),
    path("positions/open", consumer_positions.Open.as_view()),
    path("positions/settle", consumer_positions.Settle.as_view()),
    path("positions/<int:position_id>/move", position_moves.Move.as_view()),
    path("audit", audit_trail.Entries.as_view()),
    path("audit/verify", audit_trail.Verify.as_view()),
    path("reports/failure-rates", nightly_failure_rates.FailureRates.as_view()),
    path("reports/endpoints", nightly_failure_rates.EndpointDays.as_view()),
    path("reports/runs", nightly_failure_rates.Runs.as_view()),
    path("schema", openapi_reference.OpenApiSchema.as_view(), name="api-schema"),
    path("docs", openapi_reference.docs, name="api-docs"),
    re_path(r"^(?P<path>.*)$", base.Unknown.as_view()),
]
