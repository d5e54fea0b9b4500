"""The addresses under /api/v1/. Topics and bookmarks are never part of a path."""

from __future__ import annotations

from django.urls import path, re_path

from apps.api.views import (
    base,
    brokers,
    capture,
    moves,
    operations,
    poisons,
    positions,
    previews,
    problems,
    reference,
    reports,
    skips,
    topics,
    trail,
)

urlpatterns = [
    path("failures", capture.Failures.as_view()),
    path("confirmations", capture.Confirmations.as_view()),
    path("counters", capture.Counters.as_view()),
    path("poisons", poisons.Poisons.as_view()),
    path("poisons/<int:poison_id>", poisons.Poison.as_view()),
    path("poisons/<int:poison_id>/body", poisons.Body.as_view()),
    path("problems", problems.Problems.as_view()),
    path("problems/<int:problem_id>", problems.Problem.as_view()),
    path("operations", operations.Operations.as_view()),
    path("operations/preview", previews.Preview.as_view()),
    path(
        "operations/<int:operation_id>",
        operations.Operation.as_view(),
        name="api-operation",
    ),
    path("operations/<int:operation_id>/undo", operations.Undo.as_view()),
    path("brokers", brokers.Brokers.as_view()),
    path("brokers/<int:broker_id>", brokers.Broker.as_view(), name="api-broker"),
    path("brokers/<int:broker_id>/test", brokers.Test.as_view()),
    path("brokers/<int:broker_id>/discover", brokers.Discover.as_view()),
    path("topics", topics.Topics.as_view()),
    path("skips", skips.Skips.as_view()),
    path("skips/stream", skips.Stream.as_view()),
    path("skips/applied", skips.Applied.as_view()),
    path("skips/<int:skip_id>", skips.Skip.as_view(), name="api-skip"),
    path("positions", positions.Positions.as_view()),
    path("positions/open", positions.Open.as_view()),
    path("positions/settle", positions.Settle.as_view()),
    path("positions/<int:position_id>/move", moves.Move.as_view()),
    path("audit", trail.Entries.as_view()),
    path("audit/verify", trail.Verify.as_view()),
    path("reports/failure-rates", reports.FailureRates.as_view()),
    path("reports/runs", reports.Runs.as_view()),
    path("schema", reference.OpenApiSchema.as_view(), name="api-schema"),
    path("docs", reference.docs, name="api-docs"),
    re_path(r"^(?P<path>.*)$", base.Unknown.as_view()),
]
