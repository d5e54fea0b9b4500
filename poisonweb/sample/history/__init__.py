"""Four invented weeks of history, so that the reports show something.

`weeks` describes the days, `streams` the deliveries and their failures. `plan` draws
from both what happened, with the same result for the same first day. `ledger` writes
the numbers that the reports must show; `writer` writes the history to Postgres, a day
at a time, by the product's own services. The two are independent of each other.

Unlike the rest of the sample, the writer uses the server's code.
"""
