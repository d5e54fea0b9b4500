"""The query language of lists and of operations, as a member and as a parameter."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from apps.api.serializers.base import QuerySchema, Text
from apps.core.errors import Invalid
from apps.poison.query_language import MAX_LENGTH, Query


class QueryText(Text):
    """A query of poisons; what is wrong with it is a fault of this member."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_blank": True, "max_length": MAX_LENGTH, **options})

    def run_validation(self, data: object = serializers.empty) -> Any:
        text = super().run_validation(data)
        try:
            return Query.parse(text) if isinstance(text, str) else text
        except Invalid as wrong:
            raise serializers.ValidationError(wrong.remedy) from None


class SearchParams(QuerySchema[Query]):
    q = QueryText(
        default=Query,
        help_text="is:open|sent|handled|dropped day: topic: problem: consumer: cause:"
        " error:, joined by AND; ! negates, quotes hold spaces, * stands for any text",
    )

    def value_of(self, members: dict[str, Any]) -> Query:
        query: Query = members["q"]
        return query
