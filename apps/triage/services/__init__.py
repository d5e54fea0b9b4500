"""Operations, from preview and confirmation to their end: each write is a function here.

Doors call `apps.triage.operation_enqueueing`.
"""
