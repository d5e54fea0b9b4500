"""Template tags of all pages."""

from __future__ import annotations

import re
from pathlib import Path

from apps.dashboard.templatetags.shared_page_tags import filters_in_words


def test_filters_that_are_empty_are_left_out_of_the_line() -> None:
    filters = {"person": "anna", "since": "", "action": "skip.added"}

    assert filters_in_words(filters) == "person anna · action skip.added"


def test_every_field_for_a_reason_has_the_limit_of_the_audit_trail() -> None:
    templates = Path(__file__).resolve().parents[3] / "templates"
    pages = [file.read_text() for file in templates.rglob("*.html")]
    fields = re.findall(r'<(?:input|textarea) [^>]*name="reason"[^>]*', "".join(pages))

    visible = [field for field in fields if 'type="hidden"' not in field]
    assert visible
    assert [x for x in visible if 'maxlength="{% reason_limit %}"' not in x] == []
