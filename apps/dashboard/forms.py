"""What people send, parsed once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.http import QueryDict

from apps.audit.services import Action
from apps.core.errors import Invalid
from apps.dashboard.paging import MAX_ID
from apps.dashboard.selectors.skips import SkipsWanted
from apps.dashboard.selectors.topics import TopicsWanted
from apps.dashboard.selectors.trail import Wanted
from apps.team.errors import TooManySignIns
from apps.triage.services.selection import REASON_LIMIT, Route
from apps.triage.states import ASKED
from poisonguard.contract import NAME_LIMIT


class Ids(forms.TypedMultipleChoiceField):
    """Any number of row numbers; which of them exist is for the selection to say."""

    def __init__(self) -> None:
        super().__init__(coerce=int, required=False)

    def valid_value(self, value: Any) -> bool:
        text = str(value)
        return text.isascii() and text.isdigit() and int(text[:20]) <= MAX_ID


def require_valid(form: forms.Form) -> None:
    """Raise Invalid for the first field that is wrong."""
    if not form.is_valid():
        field, problems = next(iter(form.errors.items()))
        raise Invalid(field, str(problems[0]).rstrip("."))


class SignInForm(AuthenticationForm):
    """Name and password; `delay` is set where the next attempt has to wait."""

    delay: timedelta | None = None

    def clean(self) -> dict[str, Any]:
        try:
            return super().clean()
        except TooManySignIns as refusal:
            self.delay = refusal.delay
            raise forms.ValidationError(str(refusal)) from None


class SelectionForm(forms.Form):
    """What a list sends: rows, or everything that its query matches; and the verb."""

    verb = forms.ChoiceField(choices=[(verb.value, verb.value) for verb in ASKED])
    of = forms.ChoiceField(
        choices=[("messages", "messages"), ("problems", "problems")], required=False
    )
    q = forms.CharField(required=False, strip=False)
    everything = forms.BooleanField(required=False)
    ids = Ids()


class DecisionForm(forms.Form):
    """What a preview's form sends: how the messages go, why, and what to do now."""

    target_topic = forms.CharField(required=False, strip=False, max_length=NAME_LIMIT)
    ordered = forms.BooleanField(required=False)
    reason = forms.CharField(required=False, max_length=REASON_LIMIT)
    typed = forms.CharField(required=False, max_length=NAME_LIMIT)
    act = forms.ChoiceField(choices=[("confirm", "confirm"), ("look", "look")])

    @classmethod
    def read(cls, sent: QueryDict) -> Self:
        """Parse it; raises Invalid for the first field that is wrong."""
        form = cls({"act": "confirm", **sent.dict()})
        require_valid(form)
        return form

    @property
    def route(self) -> Route:
        values = self.cleaned_data
        return Route(
            target_topic=values["target_topic"] or None, ordered=values["ordered"]
        )


class TopicsForm(forms.Form):
    """Part of a name, and the name that the page begins after."""

    name = forms.CharField(required=False)
    after = forms.CharField(required=False, strip=False)

    @property
    def wanted(self) -> TopicsWanted:
        """Give the filter; one that makes no sense filters nothing."""
        return TopicsWanted(**self.cleaned_data) if self.is_valid() else TopicsWanted()


class SkipsForm(forms.Form):
    """The topics, by name or pattern, and whether the skips that have ended."""

    topic = forms.CharField(required=False)
    everything = forms.BooleanField(required=False)

    @property
    def wanted(self) -> SkipsWanted:
        """Give the filter; one that makes no sense filters nothing."""
        if not self.is_valid():
            return SkipsWanted()
        told = self.cleaned_data
        return SkipsWanted(topic=told["topic"], ended=told["everything"])


class TrailForm(forms.Form):
    """The names are the API's; `from` is a word of Python's own."""

    actor = forms.CharField(required=False)
    action = forms.ChoiceField(
        choices=[("", "Any"), *((action.value, action.value) for action in Action)],
        required=False,
    )
    subject = forms.CharField(required=False)

    def __init__(self, sent: QueryDict) -> None:
        super().__init__(sent)
        self.fields["from"] = forms.DateField(required=False)
        self.fields["to"] = forms.DateField(required=False)

    @property
    def status(self) -> int:
        return 200 if self.is_valid() else 422

    @property
    def wanted(self) -> Wanted:
        """Give the filter; one that makes no sense filters nothing."""
        if not self.is_valid():
            return Wanted()
        sent = dict(self.cleaned_data)
        return Wanted(since=sent.pop("from"), until=sent.pop("to"), **sent)
