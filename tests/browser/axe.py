"""What axe finds wrong with a page, by the rules of WCAG 2.2, levels A and AA."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from playwright.sync_api import Page

Options = dict[str, Any]

SCRIPT = files("axe_playwright_python").joinpath("axe.min.js").read_text()
LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
# The rules about colours: they take as long as all the others.
COLOURS = ["color-contrast", "link-in-text-block"]
OF_COLOURS: Options = {"runOnly": {"type": "rule", "values": COLOURS}}
OF_ALL_ELSE: Options = {
    "runOnly": {"type": "tag", "values": LEVELS},
    "rules": {rule: {"enabled": False} for rule in COLOURS},
}
# Two elements are alike if no rule of the style sheet distinguishes them.
RUN = """async ({options, alikeOnce}) => {
    const looks = /^(class|style|type|scope|colspan|aria-.*ed|aria-current)$/;
    const says = e => [...e.childNodes].some(
        node => node.nodeType === Node.TEXT_NODE && node.data.trim());
    const look = e => [e.localName, e.checked, says(e), ...[...e.attributes].map(
        ({name, value}) => looks.test(name) ? `${name}=${value}` : name)].join();
    const place = e => e ? place(e.parentElement) + look(e) + '>' : '';
    const seen = new Set();
    const isAlike = part => seen.size === seen.add(place(part.parentElement) +
        [part, ...part.querySelectorAll('*')].map(look).join('|')).size;
    const alike = [];
    // What is in one that is spared needs no sparing: each costs axe a comparison.
    for (const part of document.querySelectorAll('section, details, tr'))
        if (!alike.at(-1)?.contains(part) && isAlike(part)) alike.push(part);
    const where = alikeOnce ? {include: [document], exclude: alike} : document;
    const found = await axe.run(where, {...options, resultTypes: ['violations']});
    return found.violations.flatMap(
        ({id, nodes}) => nodes.map(({html}) => `${id}: ${html.slice(0, 120)}`));
}"""


def violations(page: Page) -> list[str]:
    """Return the accessibility rules that a page breaks, in both themes.

    Another theme is the same page in other colours: only those are asked for twice.
    """
    page.emulate_media(color_scheme="light")
    light = _broken(page, OF_ALL_ELSE) + _broken(page, OF_COLOURS, alike_once=True)
    page.emulate_media(color_scheme="dark")
    dark = _broken(page, OF_COLOURS, alike_once=True)
    return [f"light: {fault}" for fault in light] + [f"dark: {fault}" for fault in dark]


def _broken(page: Page, options: Options, *, alike_once: bool = False) -> list[str]:
    # Evaluated, not loaded: the Content-Security-Policy forbids other scripts.
    if not page.evaluate("'axe' in window"):
        page.evaluate(SCRIPT)
    arguments = {"options": options, "alikeOnce": alike_once}
    faults: list[str] = page.evaluate(RUN, arguments)
    return faults
