"""The labels of audit actions in the filter of the audit page, by group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from apps.audit.services import Action

GROUPS: Final[Mapping[str, Mapping[Action, str]]] = {
    "Messages": {
        Action.OPERATION_CONFIRMED: "Requeued, dropped, restored or gave back",
        Action.OPERATION_FINISHED: "Operation finished",
        Action.OPERATION_PAUSED: "Paused an operation",
        Action.OPERATION_RESUMED: "Resumed an operation",
        Action.OPERATION_CANCEL_REQUESTED: "Cancelled an operation",
        Action.OPERATION_CANCELLED: "Operation was cancelled",
        Action.OPERATION_RATE_CHANGED: "Changed the rate of an operation",
        Action.OPERATION_ACKNOWLEDGED: "Acknowledged an operation",
        Action.BODY_REVEALED: "Read a body or a header",
        Action.SKIP_ADDED: "Added a skip",
        Action.SKIP_RENEWED: "Renewed a skip",
        Action.SKIP_REMOVED: "Ended a skip",
        Action.POSITION_MOVED: "Moved a position",
    },
    "Endpoints and deliveries": {
        Action.ENDPOINT_CREATED: "Added an endpoint",
        Action.ENDPOINT_ALTERED: "Changed an endpoint",
        Action.ENDPOINT_REMOVED: "Removed an endpoint",
        Action.DELIVERIES_RETRIED: "Had deliveries tried again now",
        Action.DELIVERIES_GIVEN_UP: "Gave up on deliveries",
        Action.DELIVERIES_RESTORED: "Restored deliveries",
    },
    "Outboxes": {
        Action.OUTBOX_ADDED: "Added an outbox",
        Action.OUTBOX_ALTERED: "Changed an outbox",
        Action.OUTBOX_REMOVED: "Removed an outbox",
        Action.OUTBOX_ROW_RELEASED: "Let a row be sent",
        Action.OUTBOX_ROW_DROPPED: "Dropped a row",
    },
    "Brokers, topics and lanes": {
        Action.BROKER_REGISTERED: "Added a broker",
        Action.BROKER_ALTERED: "Changed a broker",
        Action.BROKER_REMOVED: "Removed a broker",
        Action.ALLOWANCE_WRITTEN: "Allow-list written by an upgrade",
        Action.ALLOWANCE_CONFIRMED: "Confirmed entries of an allow-list",
        Action.ALLOWANCE_STRUCK: "Struck entries of an allow-list",
        Action.TOPIC_REGISTERED: "Registered a topic",
        Action.TOPIC_ALTERED: "Changed the policies of a topic",
        Action.TOPIC_REMOVED: "Removed a topic",
        Action.LANE_SET: "Set what a lane does",
        Action.LANE_PAUSED: "Paused a lane",
        Action.LANE_RESUMED: "Resumed a lane",
    },
    "Sign-ins": {
        Action.USER_SIGNED_IN: "Signed in",
        Action.USER_SIGNED_OUT: "Signed out",
        Action.SIGN_IN_FAILED: "Wrong password or code",
        Action.SIGN_INS_SUSPICIOUS: "Many wrong passwords or codes",
        Action.SESSIONS_ENDED: "Ended sessions",
    },
    "People": {
        Action.USER_CREATED: "Added a person",
        Action.USER_ALTERED: "Changed, disabled or enabled a person",
        Action.PASSWORD_SET: "Set a password",
        Action.SECOND_FACTOR_ADDED: "Added a second factor",
        Action.SECOND_FACTOR_REMOVED: "Removed a second factor",
        Action.RECOVERY_CODES_MADE: "Made recovery codes",
        Action.RECOVERY_CODE_USED: "Used a recovery code",
    },
    "API keys": {
        Action.KEY_CREATED: "Made a key",
        Action.KEY_REVOKED: "Revoked a key",
        Action.KEY_REFUSED: "Refused a key that has ended",
    },
    "Reports": {Action.REPORT_REQUESTED: "Asked for a report"},
}
