"""The forms of the sign-in and of the second factor."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest, QueryDict

from apps.core import clock
from apps.dashboard.forms.fields import require_valid
from apps.team import second_factor, second_factor_session
from apps.team.models import User
from apps.team.sign_in_attempts import SignInAttempt
from apps.team.sign_in_errors import TooManySignIns

# Room for a recovery code with blanks between its characters.
CODE_LIMIT = 40
PASSWORD_LIMIT = 4096


class SignInForm(AuthenticationForm):
    """Name and password; `delay` is set while the next try must wait."""

    delay: timedelta | None = None

    def clean(self) -> dict[str, Any]:
        """Check the name and password of a sign-in; raises ValidationError.

        After too many wrong ones, `delay` says how long the next try must wait.
        """
        try:
            return super().clean()
        except TooManySignIns as refusal:
            self.delay = refusal.delay
            raise forms.ValidationError(str(refusal)) from None


class CodeForm(forms.Form):
    """A code of the second factor; `delay` is set while the next try must wait."""

    code = forms.CharField(max_length=CODE_LIMIT)
    delay: timedelta | None = None

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request = request
        self._user = second_factor_session.user_awaiting_code(request, now=clock.now())

    def clean_code(self) -> str:
        """Check a person's code of the second factor; raises ValidationError.

        A right code is used up, and a wrong one counts as a failed sign-in. After too
        many wrong ones, `delay` says how long the next try must wait.
        """
        code: str = self.cleaned_data["code"]
        if self._user is None:
            raise forms.ValidationError("That took too long: sign in again.")
        try:
            attempt = SignInAttempt.of_code(self._request, account=self._user.username)
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
        """Return the person who entered a right password; None if too long ago."""
        return self._user


class ProofForm(forms.Form):
    """The password and code that a change of the second factor requires."""

    password = forms.CharField(strip=False, max_length=PASSWORD_LIMIT)
    code = forms.CharField(max_length=CODE_LIMIT)

    @classmethod
    def read(cls, data: QueryDict) -> Self:
        """Parse a person's password and code; raises Invalid for a wrong field."""
        form = cls(data)
        require_valid(form)
        return form
