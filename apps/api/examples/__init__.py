"""Examples of bodies, by the name of the serializer that describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from apps.api.examples.answers import ANSWERS
from apps.api.examples.common import Examples
from apps.api.examples.requests import REQUESTS

EXAMPLES: Final[Mapping[str, Examples]] = {**REQUESTS, **ANSWERS}
