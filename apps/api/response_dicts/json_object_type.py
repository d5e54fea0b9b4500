"""The type of a JSON object that an answer is made of."""

from __future__ import annotations

Shape = dict[str, object]
