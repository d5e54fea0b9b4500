"""What `shapes` and the contract look like, for the OpenAPI schema only.

Nothing is parsed or rendered by these; the tests hold every answer against them.
"""
