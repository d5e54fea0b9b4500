"""Render rows as plain dicts for JSON. `serializers` describes them; the tests compare."""
