"""The guide's promises about observing equal the capabilities of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.brokers import adapters

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("kind", sorted(adapters.KINDS))
def test_the_guide_says_which_brokers_show_samples(kind: str) -> None:
    pytest.importorskip(f"{adapters.__name__}.{kind}")
    guide = (ROOT / "docs/first-hour.md").read_text()
    _, _, rest = guide.partition("where looking changes nothing (")
    shows, _, others = rest.partition(")")

    title = adapters.title_of(kind)

    peeks = adapters.adapter(kind).capabilities.peeks
    assert (title in shows, title in others.partition("\n")[0]) == (peeks, not peeks)
