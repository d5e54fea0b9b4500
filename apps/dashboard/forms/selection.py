"""From a form to an Ask: what somebody wants done, and to which messages."""

from __future__ import annotations

from django.http import HttpRequest, QueryDict
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from apps.core.errors import Invalid
from apps.dashboard.forms.fields import SelectionForm, require_valid
from apps.dashboard.selectors import operations
from apps.dashboard.selectors.operations import PreviewDetail
from apps.poison.query import Query
from apps.triage.services.selection import Ask
from apps.triage.states import Verb


def of_list(posted: QueryDict) -> Ask:
    """Read what a list asks for: some rows, or everything that its query matches."""
    form = SelectionForm(posted)
    require_valid(form)
    verb, chosen = Verb(form.cleaned_data["verb"]), tuple(form.cleaned_data["ids"])
    query = Query.parse(form.cleaned_data["q"])
    if form.cleaned_data["everything"]:
        return Ask(verb=verb, query=query)
    if not chosen:
        raise Invalid("ids", "select at least one row first")
    if form.cleaned_data["of"] == "problems":
        return operations.ask_of_problems(verb, query=query, problems=chosen)
    return Ask(verb=verb, ids=chosen)


def check_typed(found: PreviewDetail, typed: str) -> None:
    """Raise Invalid unless the number was typed, where it must be."""
    number = found.seen.will_act
    if found.must_type and typed.replace(",", "").strip() != str(number):
        raise Invalid("typed", f"type {number} to say that you mean so many")


def back(request: HttpRequest) -> str:
    """Where Cancel leads: the list that was left, and never another site."""
    wanted = request.POST.get("back") or request.GET.get("back") or ""
    if url_has_allowed_host_and_scheme(wanted, allowed_hosts=None):
        return wanted
    return reverse("messages")
