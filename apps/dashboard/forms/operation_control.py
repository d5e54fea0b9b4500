"""The forms that control a running operation, and that limit how fast it sends."""

from __future__ import annotations

from typing import Self

from django import forms
from django.http import QueryDict

from apps.core.errors import Invalid
from apps.dashboard.forms.fields import Ids, ReasonField, require_valid
from apps.triage.models import Operation
from apps.triage.ramps import MOST_STEPS, Ramp
from apps.triage.services.control import (
    CANCEL,
    PAUSE,
    RESUME,
    RESUME_WITHOUT_RAMP,
    ControlStep,
)
from apps.triage.services.pacing import HIGHEST_RATE
from apps.triage.services.selection_requests import SendLimits

RAMP_FIELDS = frozenset({"steps", "asks", "confirmed", "came_back", "wait"})
RATES = f"give a whole number from 1 to {HIGHEST_RATE:,}, or none for no limit"
STEPS = {
    "pause": PAUSE,
    "resume": RESUME,
    "resume-without-ramp": RESUME_WITHOUT_RAMP,
    "cancel": CANCEL,
}


class ControlForm(forms.Form):
    """Which step is taken, and why."""

    act = forms.ChoiceField(choices=[(name, name) for name in STEPS])
    reason = ReasonField()

    @classmethod
    def read(cls, data: QueryDict) -> Self:
        """Parse the form of an operation's pause, resume or cancel, and the reason.

        Raises Invalid for the first wrong field.
        """
        form = cls(data)
        require_valid(form)
        return form

    @property
    def step(self) -> ControlStep:
        """Return the operation's step that was chosen: pause, resume or cancel."""
        return STEPS[self.cleaned_data["act"]]


class AcknowledgementForm(forms.Form):
    """Which of the listed operations a person has seen."""

    ids = Ids()

    @classmethod
    def read(cls, data: QueryDict) -> Self:
        """Parse the form of a list of operations; raises Invalid for a wrong number."""
        form = cls({"ids": data.getlist("ids")})
        require_valid(form)
        return form


class RateForm(forms.Form):
    """How many messages a second at most; empty for no limit."""

    rate = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=HIGHEST_RATE,
        error_messages=dict.fromkeys(("invalid", "min_value", "max_value"), RATES),
    )

    @classmethod
    def read(cls, data: QueryDict) -> Self:
        """Parse the form of an operation's rate and ramp.

        Raises Invalid for the first wrong field.
        """
        form = cls(data)
        require_valid(form)
        return form


class SendLimitsForm(RateForm):
    """The rate and the ramp of a preview; without `ramped`, there is no ramp.

    What it was filled with first comes from `shown_limits`.
    """

    ramped = forms.BooleanField(required=False)
    steps = forms.CharField(required=False, max_length=200)
    asks = forms.ChoiceField(
        choices=[("confirmed", "confirmed"), ("quiet", "quiet")], required=False
    )
    confirmed = forms.IntegerField(required=False, min_value=1, max_value=100)
    came_back = forms.IntegerField(required=False, min_value=0, max_value=100)
    wait = forms.IntegerField(required=False, min_value=1)

    def limits(self, operation: Operation) -> SendLimits:
        """Return the rate and ramp in the form of an operation's preview.

        Raises Invalid for a wrong ramp, and for one that is filled in but not chosen.
        """
        values = self.cleaned_data
        if not values["ramped"]:
            self._require_unchanged_ramp(operation)
            return SendLimits(rate=values["rate"])
        usual = Ramp()
        confirmed = values["confirmed"] or usual.confirmed
        ramp = Ramp(
            steps=_parse_steps(values["steps"]),
            confirmed=None if values["asks"] == "quiet" else confirmed,
            came_back=values["came_back"] or 0,
            wait=values["wait"] or usual.wait,
        )
        return SendLimits(rate=values["rate"], ramp=ramp)

    def _require_unchanged_ramp(self, operation: Operation) -> None:
        """Raise Invalid if a person changed the ramp, but did not say to use it.

        Else all messages would be sent at once. Who unticks a ramp may leave its steps.
        """
        initial = shown_limits(None, operation)
        # What the page asks for is no sign: where only one is possible, it says so.
        changed = {
            name
            for name in (RAMP_FIELDS - {"asks"}) & self.data.keys()
            if self.data[name].strip() != str(initial[name])
        }
        if changed and not initial["ramped"]:
            remedy = 'tick "Send a few first" to use these, or leave them as they were'
            raise Invalid("steps", remedy)


def _parse_steps(text: str) -> tuple[int, ...]:
    """Parse ramp steps like "1, 5, 20"; raises Invalid."""
    words = text.replace(",", " ").split()
    if not words or not all(
        word.isascii() and word.isdigit() and len(word) < 9 for word in words
    ):
        remedy = f"give up to {MOST_STEPS} numbers, such as 1, 5, 20, 100"
        raise Invalid("steps", remedy)
    return tuple(int(word) for word in words)


def shown_limits(posted: QueryDict | None, operation: Operation) -> dict[str, object]:
    """Return the rate and ramp to show: as posted, or those of the preview."""
    if posted is not None:
        names = ("rate", "steps", "asks", "confirmed", "came_back", "wait")
        fields: dict[str, object] = {name: posted.get(name, "") for name in names}
        return {**fields, "ramped": "ramped" in posted}
    limits = SendLimits.of(operation)
    ramp = limits.ramp or Ramp()
    return {
        "rate": "" if limits.rate is None else limits.rate,
        "ramped": limits.ramp is not None,
        "steps": ", ".join(map(str, ramp.steps)),
        "asks": "quiet" if ramp.confirmed is None else "confirmed",
        "confirmed": ramp.confirmed or "",
        "came_back": ramp.came_back,
        "wait": ramp.wait,
    }
