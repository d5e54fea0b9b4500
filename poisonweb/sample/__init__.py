"""The demo: a producer, a broker and three consumers, as a customer has them.

Only `history`, which invents a past, uses the server's code. The consumers use a Redis
client and `poisonguard`, as those of a customer do.
"""
