"""Transactional outbox: messages leave the producer's database at least once.

A producer writes a message into its own Postgres in the transaction that the message
is about; a sweeper sends what is there. See Richardson, Microservices Patterns (2018),
chapter 3. `schema()` in `poisonguard.outbox.postgres_schema` returns the SQL of the
tables.
"""
