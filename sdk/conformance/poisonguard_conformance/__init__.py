"""Checks that a server keeps to `docs/protocol.md`.

`command` is `python -m poisonguard_conformance`; the checks themselves are in
`reports`, `skips` and `positions`.
"""

from __future__ import annotations
