"""The addresses of the pages. Topics and bookmarks are never part of a path."""

from __future__ import annotations

from django.contrib.auth.views import LogoutView
from django.urls import path

from apps.dashboard.views import (
    account,
    brokers,
    lanes,
    messages,
    operations,
    overview,
    positions,
    problems,
    removals,
    reports,
    skips,
    topics,
    trail,
)
from apps.dashboard.views import help as manual

urlpatterns = [
    path("", overview.index, name="home"),
    path("first-steps/dismiss", overview.put_away, name="first-steps-dismiss"),
    path("sign-in", account.SignIn.as_view(), name="sign-in"),
    path("sign-out", LogoutView.as_view(), name="sign-out"),
    path("preferences", account.preferences, name="preferences"),
    path("problems", problems.index, name="problems"),
    path("problems/<int:problem_id>", problems.detail, name="problem"),
    path("messages", messages.index, name="messages"),
    path("messages/<int:message_id>", messages.detail, name="message"),
    path("messages/<int:message_id>/reveal", messages.reveal, name="message-reveal"),
    path("messages/<int:message_id>/body", messages.download, name="message-body"),
    path("skips", skips.index, name="skips"),
    path("skips/new", skips.new, name="skip-new"),
    path("skips/<int:skip_id>", skips.detail, name="skip"),
    path("skips/<int:skip_id>/remove", skips.remove, name="skip-remove"),
    path("brokers", brokers.index, name="brokers"),
    path("brokers/new", brokers.new, name="broker-new"),
    path("brokers/<int:broker_id>", brokers.detail, name="broker"),
    path("brokers/<int:broker_id>/edit", brokers.edit, name="broker-edit"),
    path("brokers/<int:broker_id>/test", brokers.test, name="broker-test"),
    path("brokers/<int:broker_id>/remove", removals.broker, name="broker-remove"),
    path("brokers/<int:broker_id>/discover", brokers.discover, name="broker-discover"),
    path("topics", topics.index, name="topics"),
    path("topics/<int:topic_id>", topics.detail, name="topic"),
    path("topics/<int:topic_id>/mode", lanes.mode, name="topic-mode"),
    path("topics/<int:topic_id>/pause", lanes.pause, name="topic-pause"),
    path("topics/<int:topic_id>/policies", lanes.policies, name="topic-policies"),
    path("topics/<int:topic_id>/remove", removals.topic, name="topic-remove"),
    path("topics/<int:topic_id>/samples", lanes.sampled, name="topic-samples"),
    path("operations", operations.index, name="operations"),
    path("operations/preview", operations.preview, name="preview"),
    path("operations/confirm", operations.confirm, name="confirm"),
    path("operations/<int:operation_id>", operations.detail, name="operation"),
    path("operations/<int:operation_id>/undo", operations.undo, name="operation-undo"),
    path("positions", positions.index, name="positions"),
    path("positions/<int:position_id>", positions.detail, name="position"),
    path("positions/<int:position_id>/move", positions.move, name="position-move"),
    path("reports", reports.index, name="reports"),
    path("reports.csv", reports.download, name="reports-csv"),
    path("reports/runs", reports.runs, name="report-runs"),
    path("reports/run", reports.run, name="report-run"),
    path("audit", trail.index, name="audit"),
    path("help", manual.index, name="help"),
]
