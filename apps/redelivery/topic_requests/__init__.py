"""Requests that come as messages of a topic: their envelopes, and their acceptance.

`capture.intake.requests_from_messages` says which topics have them, and calls
`delivery_creation.store_requests`.
"""
