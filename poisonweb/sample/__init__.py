"""The demo: a producer, a broker, three consumers and a shop, as a customer has them.

Only `history`, which invents a past, uses the server's code. Consumers and shop use
a client of Redis or Postgres and `poisonguard`, as those of a customer do.
"""
