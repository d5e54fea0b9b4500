"""The sweeper of an outbox: it sends the rows that wait, and marks what was sent.

`Sweeper` in `poisonguard.outbox.sweeping.sweeper` is the loop; `inspect` in
`poisonguard.outbox.sweeping.inspection` checks a table before that. They need psycopg.
"""
