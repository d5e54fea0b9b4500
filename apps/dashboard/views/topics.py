"""The pages of topics: the list, and one topic."""

from __future__ import annotations

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from apps.core import clock
from apps.dashboard.decorators import SignedIn, needs, show
from apps.dashboard.forms.topic_and_skip_filters import TopicsForm
from apps.dashboard.selectors import topics
from apps.team.rights import Scope


@require_safe
@needs(Scope.POISONS_READ)
def index(request: SignedIn) -> HttpResponse:
    filters = TopicsForm(request.GET).as_filter
    topic_list = topics.find(filters, request.user.principal, now=clock.now())
    context = {
        "topics": topic_list,
        "filters": filters,
        "may_write": request.user.principal.may(Scope.BROKERS_WRITE),
    }
    return show(request, "topics/list.html", context, live="topics/_live_topics.html")


@require_safe
@needs(Scope.POISONS_READ)
def detail(request: SignedIn, topic_id: int) -> HttpResponse:
    topic_detail = topics.one(topic_id, request.user.principal, now=clock.now())
    context = {
        "detail": topic_detail,
        "row": topic_detail.row,
        "topic": topic_detail.row.topic,
        "lane": topic_detail.row.lane,
        "may_write": request.user.principal.may(Scope.BROKERS_WRITE),
    }
    return show(request, "topics/detail.html", context, live="topics/_live_detail.html")
