"""What narrows a list down."""

from __future__ import annotations

from django import forms

from apps.dashboard.selectors.skips import SkipsWanted
from apps.dashboard.selectors.topics import TopicsWanted


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
