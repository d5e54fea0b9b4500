"""The gateway: calls of endpoints over HTTP, as an ASGI application of its own.

It answers with raw bytes and Django's ORM, without Django's requests and views, and
runs in a process of its own, so that slow back ends slow down no page and no consumer.
"""
