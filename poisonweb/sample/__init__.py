"""The demo: a producer, three consumers and the broker between, as a customer has them.

Nothing here knows the server, but for `history`, which makes up a past for it.
Consumers use a Redis client and `poisonguard`; so can anybody's.
"""
