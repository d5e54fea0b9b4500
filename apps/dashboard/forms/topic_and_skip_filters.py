"""The forms that filter lists."""

from __future__ import annotations

from django import forms

from apps.dashboard.selectors.skips import SkipFilter
from apps.dashboard.selectors.topics import TopicFilter


class TopicsForm(forms.Form):
    """Filter topics by part of a name; the page begins after the name `after`."""

    name = forms.CharField(required=False)
    after = forms.CharField(required=False, strip=False)

    @property
    def as_filter(self) -> TopicFilter:
        """Return the filter of the page of topics; an invalid form's selects all."""
        return TopicFilter(**self.cleaned_data) if self.is_valid() else TopicFilter()


class SkipsForm(forms.Form):
    """Filter skips by topic name or pattern; `everything` selects the ended ones."""

    topic = forms.CharField(required=False)
    everything = forms.BooleanField(required=False)

    @property
    def as_filter(self) -> SkipFilter:
        """Return the filter of skips; an invalid form's selects all active skips."""
        if not self.is_valid():
            return SkipFilter()
        data = self.cleaned_data
        return SkipFilter(topic=data["topic"], ended=data["everything"])
