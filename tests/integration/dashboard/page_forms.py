"""A page's form as a browser would send it, read from its HTML."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from django.test import Client

Attributes = dict[str, str | None]
# Types of fields that people do not fill in.
NOT_FILLED_IN = frozenset({"hidden", "submit"})


@dataclass
class PageForm:
    """The form around a button: its address, its fields, and the visible ones.

    `templates` are those of its page. `values` are what a browser sends for the page as
    it is; one that is not ticked, or has nothing chosen, is missing there but is in
    `visible`.
    """

    action: str = ""
    values: dict[str, str] = field(default_factory=dict)
    visible: set[str] = field(default_factory=set)
    buttons: list[Attributes] = field(default_factory=list)
    templates: frozenset[str] = frozenset()

    def press(self, client: Client, act: str | None = None, **changes: str) -> Any:
        """Send the form with these fields changed; "" in a tick box unticks it."""
        pressed = {"act": act} if act else {}
        return client.post(self.action, {**self.values, **changes, **pressed})


class _Reader(HTMLParser):
    """Collect each POST form of a page."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.forms: list[PageForm] = []
        self.form: PageForm | None = None
        self.select = ""
        self.area = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of: Attributes = dict(attrs)
        if tag == "form" and of.get("method") == "post":
            self.form = PageForm(action=of.get("action") or self.address)
            self.forms.append(self.form)
        elif self.form is not None:
            self._control(tag, of, self.form)

    def _control(self, tag: str, of: Attributes, form: PageForm) -> None:
        name = of.get("name") or ""
        if tag == "button":
            form.buttons.append(of)
        elif tag == "option" and ("selected" in of or self.select not in form.values):
            form.values[self.select] = of.get("value") or ""
        elif tag == "select":
            self.select = name
            form.visible.add(name)
        elif tag == "textarea":
            self.area = name
            form.values[name] = ""
            form.visible.add(name)
        elif tag == "input" and name:
            self._input(name, of, form)

    def _input(self, name: str, of: Attributes, form: PageForm) -> None:
        kind = of.get("type") or "text"
        if kind not in NOT_FILLED_IN:
            form.visible.add(name)
        if kind not in {"checkbox", "radio"} or "checked" in of:
            form.values[name] = of.get("value") or ""

    def handle_data(self, data: str) -> None:
        if self.area and self.form is not None:
            self.form.values[self.area] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self.form = None
        elif tag == "textarea":
            self.area = ""


def form_on(response: Any, *, button: str) -> PageForm:
    """Read the form of a page that has a button with this text in its HTML."""
    page = response.content.decode()
    for piece in page.split("<form ")[1:]:
        if button in piece.partition("</form>")[0]:
            reader = _Reader(response.request["PATH_INFO"])
            reader.feed("<form " + piece)
            form = reader.forms[0]
            form.templates = frozenset(each.name for each in response.templates)
            return form
    raise AssertionError(f"no form has a button {button!r}: {page}")
