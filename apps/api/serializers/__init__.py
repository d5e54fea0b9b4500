"""Describe `response_dicts` and the contract for the OpenAPI schema.

These serializers parse and render nothing; the tests compare every answer with them.
"""
