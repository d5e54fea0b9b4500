"""The form above lists that are searched and paged by name."""

from __future__ import annotations

from django import forms

from apps.dashboard.selectors.name_filter import NameFilter


class NamesForm(forms.Form):
    """Filter a list by part of a name; the page begins after the name `after`."""

    name = forms.CharField(required=False)
    after = forms.CharField(required=False, strip=False)

    @property
    def as_filter(self) -> NameFilter:
        """Return the name filter of a list; an invalid form's selects all rows."""
        return NameFilter(**self.cleaned_data) if self.is_valid() else NameFilter()
