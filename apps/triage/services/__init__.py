"""Operations, from preview to end: each write of them is a function of these modules.

Doors call `apps.triage.operation_enqueueing`.
"""
