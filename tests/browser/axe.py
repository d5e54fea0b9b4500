"""What axe finds wrong with a page, by the rules of WCAG 2.2, levels A and AA."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from playwright.sync_api import Page

Rules = dict[str, Any]

SCRIPT = files("axe_playwright_python").joinpath("axe.min.js").read_text()
LEVELS = {
    "type": "tag",
    "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"],
}
# All rules of these levels that ask for a colour.
OF_COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
RUN = """async rules => {
    const wanted = {runOnly: rules, resultTypes: ['violations']};
    const found = await axe.run(document, wanted);
    return found.violations.flatMap(
        ({id, nodes}) => nodes.map(({html}) => `${id}: ${html.slice(0, 120)}`));
}"""


def violations(page: Page) -> list[str]:
    """Give the broken rules of both themes, with the elements that break them.

    Another theme is the same page in other colours: only those are asked for twice.
    """
    page.emulate_media(color_scheme="light")
    light = _broken(page, LEVELS)
    page.emulate_media(color_scheme="dark")
    dark = _broken(page, OF_COLOURS)
    return [f"light: {fault}" for fault in light] + [f"dark: {fault}" for fault in dark]


def _broken(page: Page, rules: Rules) -> list[str]:
    # Evaluated, not loaded: the Content-Security-Policy lets no such script in.
    if not page.evaluate("'axe' in window"):
        page.evaluate(SCRIPT)
    found: list[str] = page.evaluate(RUN, rules)
    return found
