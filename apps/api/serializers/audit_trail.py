"""Entries of the audit trail, and the result of its verification."""

from __future__ import annotations

from rest_framework import serializers

from apps.api.serializers.base import (
    Flag,
    Hex,
    List,
    Moment,
    Number,
    Schema,
    Sourced,
    Text,
)


class Entry(Sourced):
    seq = Number()
    at = Moment()
    actor = Text()
    action = Text()
    subject = Text()
    reason = Text()
    detail = serializers.DictField()
    hash = Hex(help_text="SHA-256 over the previous hash and this entry")


class Entries(List):
    results = Entry(many=True)


class Verdict(Schema):
    entries = Number()
    ok = Flag()
    first_bad = Number(allow_null=True)
    head = Text()
    troubles = serializers.ListField(
        child=Text(), help_text="What is wrong, a sentence each; empty when ok"
    )
