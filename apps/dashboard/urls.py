"""The addresses of the pages. Topics and bookmarks are never part of a path."""

from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from apps.dashboard.views import (
    account,
    messages,
    operations,
    overview,
    positions,
    problems,
    reports,
    topics,
    trail,
)
from apps.dashboard.views import help as manual

SIGN_IN = LoginView.as_view(
    template_name="registration/sign_in.html", redirect_authenticated_user=True
)

urlpatterns = [
    path("", overview.index, name="home"),
    path("sign-in", SIGN_IN, name="sign-in"),
    path("sign-out", LogoutView.as_view(), name="sign-out"),
    path("preferences", account.preferences, name="preferences"),
    path("problems", problems.index, name="problems"),
    path("problems/<int:problem_id>", problems.detail, name="problem"),
    path("messages", messages.index, name="messages"),
    path("messages/<int:message_id>", messages.detail, name="message"),
    path("messages/<int:message_id>/reveal", messages.reveal, name="message-reveal"),
    path("messages/<int:message_id>/body", messages.download, name="message-body"),
    path("topics", topics.index, name="topics"),
    path("topics/<int:topic_id>", topics.detail, name="topic"),
    path("operations", operations.index, name="operations"),
    path("operations/preview", operations.preview, name="preview"),
    path("operations/elsewhere", operations.elsewhere, name="elsewhere"),
    path("operations/confirm", operations.confirm, name="confirm"),
    path("operations/<int:operation_id>", operations.detail, name="operation"),
    path("operations/<int:operation_id>/undo", operations.undo, name="operation-undo"),
    path("positions", positions.index, name="positions"),
    path("reports", reports.index, name="reports"),
    path("reports.csv", reports.download, name="reports-csv"),
    path("reports/runs", reports.runs, name="report-runs"),
    path("reports/run", reports.run, name="report-run"),
    path("audit", trail.index, name="audit"),
    path("help", manual.index, name="help"),
]
