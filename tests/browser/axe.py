"""What axe finds wrong with a page, by the rules of WCAG 2.2, levels A and AA."""

from __future__ import annotations

from importlib.resources import files

from playwright.sync_api import Page

SCRIPT = files("axe_playwright_python").joinpath("axe.min.js").read_text()
RUN = """async () => {
    const levels = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'];
    const wanted = {runOnly: levels, resultTypes: ['violations']};
    const found = await axe.run(document, wanted);
    return found.violations.flatMap(
        ({id, nodes}) => nodes.map(({html}) => `${id}: ${html.slice(0, 120)}`));
}"""


def violations(page: Page) -> list[str]:
    """Give the broken rules with the elements that break them; leave the page as is."""
    # Evaluated, not loaded: the Content-Security-Policy lets no such script in.
    if not page.evaluate("'axe' in window"):
        page.evaluate(SCRIPT)
    found: list[str] = page.evaluate(RUN)
    return found
