"""Calls to the back end of an endpoint, for the gateway and for the sender.

It knows HTTP, names and addresses, and no model: what a failure leads to is decided by
the callers.
"""
