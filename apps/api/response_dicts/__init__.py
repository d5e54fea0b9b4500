"""Render rows as plain dicts, where serializers would be too slow."""
