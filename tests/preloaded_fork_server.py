"""Processes forked from one that has loaded all that they need: they start in no time.

multiprocessing has a single such process, which loads what was wished last, when the
first of them is asked for; so everybody's wishes are collected here.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

_loaded: list[str] = []


def of(module: str) -> ForkServerContext:
    """Return what forks processes that have `module` loaded, and the rest's."""
    _loaded.append(module)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_loaded)
    return context
