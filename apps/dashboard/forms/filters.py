"""What narrows a list down."""

from __future__ import annotations

from django import forms

from apps.dashboard.selectors.skips import SkipFilter
from apps.dashboard.selectors.topics import TopicFilter


class TopicsForm(forms.Form):
    """Part of a name, and the name that the page begins after."""

    name = forms.CharField(required=False)
    after = forms.CharField(required=False, strip=False)

    @property
    def as_filter(self) -> TopicFilter:
        """Give the filter; one that makes no sense filters nothing."""
        return TopicFilter(**self.cleaned_data) if self.is_valid() else TopicFilter()


class SkipsForm(forms.Form):
    """The topics, by name or pattern, and whether the skips that have ended."""

    topic = forms.CharField(required=False)
    everything = forms.BooleanField(required=False)

    @property
    def as_filter(self) -> SkipFilter:
        """Give the filter; one that makes no sense filters nothing."""
        if not self.is_valid():
            return SkipFilter()
        data = self.cleaned_data
        return SkipFilter(topic=data["topic"], ended=data["everything"])
