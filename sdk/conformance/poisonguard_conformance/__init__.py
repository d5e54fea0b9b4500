"""Checks of `docs/protocol.md`: whether a server keeps what consumers rely upon.

`command` is `python -m poisonguard_conformance`; the checks themselves are in
`reports`, `skips` and `positions`.
"""

from __future__ import annotations
