"""All addresses of the product; all but three require a sign-in."""

from __future__ import annotations

from django.urls import include, path

from apps.api import health
from apps.api.metrics import Metrics

urlpatterns = [
    path("healthz", health.alive, name="healthz"),
    path("readyz", health.ready, name="readyz"),
    path("metrics", Metrics.as_view(), name="metrics"),
    path("api/v1/", include("apps.api.urls")),
    path("", include("apps.dashboard.urls")),
]
handler400 = "apps.dashboard.views.django_error_handlers.bad_request"
handler403 = "apps.dashboard.views.django_error_handlers.forbidden"
handler404 = "apps.dashboard.views.django_error_handlers.not_found"
handler500 = "apps.dashboard.views.django_error_handlers.server_error"
