"""The addresses of the pages. Topics and bookmarks are never part of a path."""

from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path
from django.views.generic import RedirectView

from apps.dashboard.views import (
    account,
    messages,
    operations,
    positions,
    problems,
    trail,
)

SIGN_IN = LoginView.as_view(
    template_name="registration/sign_in.html", redirect_authenticated_user=True
)

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="problems"), name="home"),
    path("sign-in", SIGN_IN, name="sign-in"),
    path("sign-out", LogoutView.as_view(), name="sign-out"),
    path("preferences", account.preferences, name="preferences"),
    path("problems", problems.index, name="problems"),
    path("problems/<int:problem_id>", problems.detail, name="problem"),
    path("messages", messages.index, name="messages"),
    path("messages/<int:message_id>", messages.detail, name="message"),
    path("messages/<int:message_id>/reveal", messages.reveal, name="message-reveal"),
    path("messages/<int:message_id>/body", messages.download, name="message-body"),
    path("operations/preview", operations.preview, name="preview"),
    path("operations/elsewhere", operations.elsewhere, name="elsewhere"),
    path("operations/confirm", operations.confirm, name="confirm"),
    path("operations/<int:operation_id>", operations.detail, name="operation"),
    path("operations/<int:operation_id>/undo", operations.undo, name="operation-undo"),
    path("positions", positions.index, name="positions"),
    path("audit", trail.index, name="audit"),
]
