"""Four invented weeks of history, so that the reports show something.

`traffic_calendar` describes the days, `traffic_streams_and_faults` the deliveries and
their failures. `daily_failure_plan` draws from both what happened, with the same result
for the same first day. `expected_report_numbers` counts what the reports must show;
`writer` writes the history to Postgres, a day at a time, by the product's own services.
The two are independent of each other.

Unlike the rest of the sample, the writer uses the server's code.
"""
