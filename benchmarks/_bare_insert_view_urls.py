"""The product's addresses, and a view that does the least that a capture could do."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from poisonweb import urls

LEAST = "api/v1/bench/insert"
TABLE = "CREATE TABLE bench_inserted (id bigserial PRIMARY KEY, content bytea NOT NULL)"


@csrf_exempt
@login_not_required
def insert(request: HttpRequest) -> JsonResponse:
    """Insert the request's body as a row, and commit: the bare view of a benchmark."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO bench_inserted (content) VALUES (%s)", [request.body]
        )
    return JsonResponse({"results": [{"status": "created"}]})


urlpatterns = [path(LEAST, insert), *urls.urlpatterns]
