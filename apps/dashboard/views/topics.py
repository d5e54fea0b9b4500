"""Topics: the list, and one of them."""

from __future__ import annotations

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from apps.core import clock
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.forms.filters import TopicsForm
from apps.dashboard.selectors import topics
from apps.team.rights import Scope


@require_safe
@needs(Scope.POISONS_READ)
def index(request: SignedIn) -> HttpResponse:
    wanted = TopicsForm(request.GET).wanted
    found = topics.find(wanted, request.user.principal, now=clock.now())
    context = {
        "found": found,
        "wanted": wanted,
        "may_write": request.user.principal.may(Scope.BROKERS_WRITE),
    }
    return show(request, "topics/list.html", context, live="topics/_rows.html")


@require_safe
@needs(Scope.POISONS_READ)
def detail(request: SignedIn, topic_id: int) -> HttpResponse:
    found = topics.one(topic_id, request.user.principal, now=clock.now())
    context = {
        "found": found,
        "row": found.row,
        "topic": found.row.topic,
        "lane": found.row.watch,
        "may_write": request.user.principal.may(Scope.BROKERS_WRITE),
    }
    return show(request, "topics/detail.html", context, live="topics/_detail.html")
