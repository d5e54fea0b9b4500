"""The samples of dead letters that an observing lane keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apps.brokers.models import Topic
from apps.capture.lanes import dead_letter_sample_reveal
from apps.capture.models import Sample
from apps.core.text_cleaning import readable
from apps.dashboard.presentation.message_body import BodyView, view
from apps.dashboard.selectors.messages import MASKED, legible


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRow:
    """A sample for its page; `body` is None until a person reveals it."""

    sample: Sample
    headers: list[tuple[str, str]]
    body: BodyView | None = None


def of(topic: Topic) -> list[SampleRow]:
    """List a topic's dead-letter samples, with masked headers, without bodies."""
    return [
        SampleRow(
            sample=sample,
            headers=[
                (readable(name), MASKED)
                for name, _ in dead_letter_sample_reveal.headers_of(sample)
            ],
        )
        for sample in dead_letter_sample_reveal.of(topic)
    ]


def rows_of_revealed(revealed: Sequence[Sample]) -> list[SampleRow]:
    """Build rows of a topic's revealed dead-letter samples, with headers and bodies.

    Values of secret headers are masked.
    """
    return [
        SampleRow(
            sample=sample,
            headers=[
                legible(*header)
                for header in dead_letter_sample_reveal.headers_of(sample)
            ],
            body=view(bytes(sample.start), size=_size_of_body(sample)),
        )
        for sample in revealed
    ]


def _size_of_body(sample: Sample) -> int:
    """Return the size of a topic's sampled dead letter's body: all but its headers."""
    headers = sum(len(bytes(part)) for part in sample.headers)
    return max(len(sample.start), sample.size - headers)
