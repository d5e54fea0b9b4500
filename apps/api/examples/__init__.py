"""Examples of bodies, by the name of the serializer that describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from apps.api.examples.answers import ANSWERS
from apps.api.examples.requests import REQUESTS
from apps.api.examples.shared_values import Examples

EXAMPLES: Final[Mapping[str, Examples]] = {**REQUESTS, **ANSWERS}
