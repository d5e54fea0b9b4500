"""OUT: preview, confirm, run, rescue, prune.

Doors call `apps.triage.operation_enqueueing`.
"""
