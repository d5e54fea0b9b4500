"""The forms of an operation: its messages, its verb, its route and its reason."""

from __future__ import annotations

from typing import Self

from django import forms
from django.http import HttpRequest, QueryDict
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from apps.core.errors import Invalid
from apps.dashboard.forms.fields import Ids, ReasonField, require_valid
from apps.dashboard.forms.operation_control import SendLimitsForm
from apps.dashboard.selectors import operation_previews
from apps.dashboard.selectors.operation_previews import PreviewDetail
from apps.poison.query_language import Query, Term
from apps.redelivery.delivery_filters import PARAMETERS
from apps.redelivery.services import delivery_items
from apps.triage.operation_states import REQUESTABLE, VERBS, ItemKindName, Verb
from apps.triage.services.selection_requests import Route, SelectionRequest
from poisonguard.contract import NAME_LIMIT


class DeliverySelectionForm(forms.Form):
    """The form of the list of deliveries: its filters, and the verb."""

    verb = forms.ChoiceField(
        choices=[(verb.value, verb.value) for verb in VERBS[ItemKindName.DELIVERY]]
    )


class SelectionForm(forms.Form):
    """The form of a list: the selected rows or the whole query, and the verb."""

    verb = forms.ChoiceField(choices=[(verb.value, verb.value) for verb in REQUESTABLE])
    of = forms.ChoiceField(
        choices=[("messages", "messages"), ("problems", "problems")], required=False
    )
    q = forms.CharField(required=False, strip=False)
    everything = forms.BooleanField(required=False)
    ids = Ids()
    # The topic whose open messages go back to its dead-letter queue.
    give_back = forms.CharField(required=False, strip=False, max_length=NAME_LIMIT)


class DecisionForm(SendLimitsForm):
    """The form of a preview: route, rate, ramp, reason, and whether to confirm."""

    target_topic = forms.CharField(required=False, strip=False, max_length=NAME_LIMIT)
    ordered = forms.BooleanField(required=False)
    reason = ReasonField()
    typed = forms.CharField(required=False, max_length=NAME_LIMIT)
    act = forms.ChoiceField(choices=[("confirm", "confirm"), ("look", "look")])

    @classmethod
    def read(cls, data: QueryDict) -> Self:
        """Parse a decision on messages; raises Invalid for the first wrong field."""
        form = cls({"act": "confirm", **data.dict()})
        require_valid(form)
        return form

    @property
    def route(self) -> Route:
        """Return the route chosen in the form: a target topic, and whether in order."""
        values = self.cleaned_data
        return Route(
            target_topic=values["target_topic"] or None, ordered=values["ordered"]
        )


def parse_list(posted: QueryDict) -> SelectionRequest:
    """Parse which messages, problems or deliveries a person selected in a list.

    They are either single rows, or all that match the list's query. Raises Invalid for
    a wrong field, or if no row is selected.
    """
    if posted.get("of") == "deliveries":
        chosen_verb = DeliverySelectionForm(posted)
        require_valid(chosen_verb)
        return delivery_items.selection_of_matches(
            Verb(chosen_verb.cleaned_data["verb"]),
            {name: posted.get(name, "").strip() for name in PARAMETERS},
        )
    form = SelectionForm(
        {"verb": Verb.REDRIVE.value, **posted.dict(), "ids": posted.getlist("ids")}
    )
    require_valid(form)
    verb, chosen = Verb(form.cleaned_data["verb"]), tuple(form.cleaned_data["ids"])
    query = Query.parse(form.cleaned_data["q"])
    if form.cleaned_data["give_back"]:
        topic = form.cleaned_data["give_back"]
        query = Query((Term("topic", topic), Term("is", "open")))
        return SelectionRequest(verb=Verb.GIVE_BACK, query=query, target_topic=topic)
    if form.cleaned_data["everything"]:
        return SelectionRequest(verb=verb, query=query)
    if not chosen:
        raise Invalid("ids", "select at least one row first")
    if form.cleaned_data["of"] == "problems":
        return operation_previews.selection_of_problems(
            verb, query=query, problems=chosen
        )
    return SelectionRequest(verb=verb, ids=chosen)


def check_typed(preview: PreviewDetail, typed: str) -> None:
    """Raise Invalid where the number of messages must be typed, and was not."""
    number = preview.summary.will_act
    if preview.must_type and typed.replace(",", "").strip() != str(number):
        raise Invalid("typed", f"type {number} to confirm the number")


def back_url(request: HttpRequest, *, otherwise: str = "messages") -> str:
    """Return the address of a form's Cancel: the submitted one, else a list's.

    An address of another site is ignored.
    """
    url = request.POST.get("back") or request.GET.get("back") or ""
    if url_has_allowed_host_and_scheme(url, allowed_hosts=None):
        return url
    return reverse(otherwise)
