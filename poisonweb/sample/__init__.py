"""The demo: a producer, two consumers and the broker between, as a customer has them.

Nothing here knows the server, but for `history`, which makes up a past for it.
Consumers use a Redis client, three HTTP calls and the header names of
`poisonguard.contract`; so can anybody's.
"""
