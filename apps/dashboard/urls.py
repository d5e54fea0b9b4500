"""The addresses of the pages. Topics and bookmarks are never part of a path."""

from __future__ import annotations

from django.contrib.auth.views import LogoutView
from django.urls import path

from apps.dashboard.views import (
    brokers,
    keys,
    lanes,
    messages,
    operations,
    overview,
    own_account,
    people,
    positions,
    problems,
    provider,
    removals,
    reports,
    second_factor,
    sign_in,
    skips,
    topics,
    trail,
)
from apps.dashboard.views import help as manual

# The methods of a form; Django's own views would also take PUT as POST.
FORM = ["get", "head", "post"]

urlpatterns = [
    path("", overview.index, name="home"),
    path(
        "first-steps/dismiss", overview.dismiss_first_steps, name="first-steps-dismiss"
    ),
    path("sign-in", sign_in.SignIn.as_view(http_method_names=FORM), name="sign-in"),
    path(
        "sign-in/code",
        sign_in.SignInCode.as_view(http_method_names=FORM),
        name="sign-in-code",
    ),
    path("sign-in/provider", provider.begin, name="sign-in-provider"),
    path(
        "sign-in/provider/callback", provider.callback, name="sign-in-provider-callback"
    ),
    path("second-factor", second_factor.index, name="second-factor"),
    path("second-factor/qr.svg", second_factor.qr_code, name="second-factor-qr"),
    path(
        "second-factor/recovery-codes",
        second_factor.recovery_codes,
        name="second-factor-codes",
    ),
    path("second-factor/remove", second_factor.remove, name="second-factor-remove"),
    path("sign-out", LogoutView.as_view(http_method_names=["post"]), name="sign-out"),
    path("preferences", sign_in.preferences, name="preferences"),
    path("problems", problems.index, name="problems"),
    path("problems/<int:problem_id>", problems.detail, name="problem"),
    path(
        "problems/<int:problem_id>/header",
        problems.reveal_header,
        name="problem-header",
    ),
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
    path("brokers/allowed", brokers.allowances, name="broker-allowances"),
    path("brokers/<int:broker_id>", brokers.detail, name="broker"),
    path("brokers/<int:broker_id>/edit", brokers.edit, name="broker-edit"),
    path("brokers/<int:broker_id>/test", brokers.test, name="broker-test"),
    path("brokers/<int:broker_id>/remove", removals.broker, name="broker-remove"),
    path("brokers/<int:broker_id>/discover", brokers.discover, name="broker-discover"),
    path("brokers/<int:broker_id>/observe", brokers.observe, name="broker-observe"),
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
    path("people", people.index, name="people"),
    path("people/new", people.new, name="person-new"),
    path("people/<int:user_id>", people.detail, name="person"),
    path("people/<int:user_id>/rights", people.rights, name="person-rights"),
    path("people/<int:user_id>/active", people.active, name="person-active"),
    path("people/<int:user_id>/password", people.password, name="person-password"),
    path("people/<int:user_id>/sessions", people.end_sessions, name="person-sessions"),
    path("keys", keys.index, name="keys"),
    path("keys/new", keys.new, name="key-new"),
    path("keys/<int:key_id>/revoke", keys.revoke, name="key-revoke"),
    path("account", own_account.index, name="account"),
    path("account/password", own_account.password, name="account-password"),
    path("account/sessions", own_account.end_sessions, name="account-sessions"),
    path("audit.csv", trail.download_csv, name="audit-csv"),
    path("audit.ndjson", trail.download_ndjson, name="audit-ndjson"),
    path("help", manual.index, name="help"),
]
