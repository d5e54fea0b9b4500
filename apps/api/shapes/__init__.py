"""Render rows as plain dicts for JSON. `schemas` describes them; the tests compare."""
