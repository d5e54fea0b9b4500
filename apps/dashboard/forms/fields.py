"""What people send, parsed once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest, QueryDict

from apps.core import clock
from apps.core.errors import Invalid
from apps.dashboard.paging import MAX_ID
from apps.dashboard.selectors.skips import SkipsWanted
from apps.dashboard.selectors.topics import TopicsWanted
from apps.team import second_factor, second_factor_session
from apps.team.errors import TooManySignIns
from apps.team.models import User
from apps.team.sign_in import Attempt
from apps.triage.services.selection import REASON_LIMIT, Route
from apps.triage.states import ASKED
from poisonguard.contract import NAME_LIMIT

# A recovery code, with all the blanks that somebody may type.
CODE_LIMIT = 40
PASSWORD_LIMIT = 4096


class Ids(forms.TypedMultipleChoiceField):
    """Any number of row numbers; which of them exist is for the selection to say."""

    def __init__(self) -> None:
        super().__init__(coerce=int, required=False)

    def valid_value(self, value: Any) -> bool:
        text = str(value)
        return text.isascii() and text.isdigit() and int(text[:20]) <= MAX_ID


def one_line_break(text: str) -> str:
    """Give a text with one sign for each end of a line: browsers send CRLF."""
    return text.replace("\r\n", "\n")


class ReasonField(forms.CharField):
    def to_python(self, value: Any) -> str:
        return one_line_break(super().to_python(value) or "")


def reason_in(sent: QueryDict) -> str:
    """Read the reason that a form sends, as it will be on record."""
    return one_line_break(sent.get("reason") or "")


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


class CodeForm(forms.Form):
    """A code of the second factor; `delay` is set where the next one has to wait."""

    code = forms.CharField(max_length=CODE_LIMIT)
    delay: timedelta | None = None

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request = request
        self._user = second_factor_session.asked(request, now=clock.now())

    def clean_code(self) -> str:
        code: str = self.cleaned_data["code"]
        if self._user is None:
            raise forms.ValidationError("That took too long: sign in again.")
        try:
            attempt = Attempt.of_code(self._request, account=self._user.username)
            is_right = second_factor.prove(
                user=self._user, code=code, attempt=attempt, now=clock.now()
            )
        except TooManySignIns as refusal:
            self.delay = refusal.delay
            raise forms.ValidationError(str(refusal)) from None
        if not is_right:
            raise forms.ValidationError(
                "That code is not right, or was used before: wait for the next one."
            )
        return code

    def get_user(self) -> User | None:
        return self._user


class ProofForm(forms.Form):
    """What a change of the second factor asks for."""

    password = forms.CharField(strip=False, max_length=PASSWORD_LIMIT)
    code = forms.CharField(max_length=CODE_LIMIT)

    @classmethod
    def read(cls, sent: QueryDict) -> Self:
        """Parse it; raises Invalid for the first field that is wrong."""
        form = cls(sent)
        require_valid(form)
        return form


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
    reason = ReasonField(required=False, max_length=REASON_LIMIT)
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
