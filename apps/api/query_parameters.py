"""Refuse query parameters that a call does not have: a list would ignore the filter."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.serializers import Serializer

from apps.api.request_exceptions import InvalidMembers
from apps.api.serializers.base import MOST_FAULTS, NAME_LIMIT
from apps.core.errors import step
from apps.core.text_cleaning import storable


def names_of(
    parameters: Sequence[OpenApiParameter | type[Serializer[Any]]],
) -> Iterator[str]:
    """List the names of a call's query parameters; those in headers are left out."""
    for parameter in parameters:
        if not isinstance(parameter, OpenApiParameter):
            yield from map(str, parameter().fields)
        elif parameter.location == OpenApiParameter.QUERY:
            yield parameter.name


def refuse_unknown(names: Iterable[str], parameters: Collection[str]) -> None:
    """Raise InvalidMembers if a request's query has names of no such parameter."""
    remedy = f"there is no such parameter; there are {', '.join(sorted(parameters))}"
    unknown = (name for name in names if name not in parameters)
    faults = [
        (f"/{step(storable(name, limit=NAME_LIMIT))}", remedy)
        for name in islice(unknown, MOST_FAULTS)
    ]
    if faults:
        raise InvalidMembers(faults)
