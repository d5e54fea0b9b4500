"""Four weeks of a past that never was, so that the reports have something to say.

`weeks` tells what kind of day it was, `streams` what was delivered and how it failed,
and `plan` draws from both what happened, the same for the same first day. `ledger`
writes down what the reports must say of it; `writer` makes it happen in Postgres, a
day at a time, by the product's own services. Neither knows of the other.

Unlike the rest of the sample, the writer knows the server.
"""
