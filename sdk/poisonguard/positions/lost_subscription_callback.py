"""The fences of one client name: subscriptions that another holder has taken over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

log = logging.getLogger(__name__)


def taken_over(sub_id: str) -> str:
    """Return a text that says that a subscription was lost, and what follows."""
    return (
        f"The subscription {sub_id} was opened by another holder, or moved by a person:"
        " nothing more is settled here until it is opened again."
    )


def announce(sub_ids: Iterable[str], on_fenced: Callable[[str], object] | None) -> None:
    """Log that subscriptions were lost; call the application's `on_fenced` for each."""
    for sub_id in sub_ids:
        log.error("%s", taken_over(sub_id))
        if on_fenced is not None:
            on_fenced(sub_id)
