"""Each setting of an outbox, declared once: forms, API and checks derive from it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from apps.brokers.models import BROKER_NAME_LIMIT
from apps.core.declared_settings import Kind, Setting
from apps.outbox.models import MOST_WINDOW, SCHEMA_LIMIT

URL_LIMIT = 4_000
MOST_DAYS = 3_650
# Of messages that are counted: what JSON has exactly.
MOST_MESSAGES = 2**53


class OutboxGroup(StrEnum):
    """Settings that belong together; pages have a section for each."""

    DATABASE = "The producer's database"
    BROKER = "Where messages go"
    RETENTION = "How long it is remembered"


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        name="url",
        kind=Kind.TEXT,
        group=OutboxGroup.DATABASE,
        label="Address",
        help="as postgresql://user:password@host:port/database?sslmode=require, or"
        " env:NAME for a variable of the environment that begins with BROKER_; TLS is"
        " required unless it says sslmode=disable; it is stored sealed, and not shown"
        " again",
        most=URL_LIMIT,
    ),
    Setting(
        name="schema",
        kind=Kind.TEXT,
        group=OutboxGroup.DATABASE,
        label="Schema",
        help="of the table poisonguard_outbox; empty: as the user's search path has it",
        most=SCHEMA_LIMIT,
        is_optional=True,
    ),
    Setting(
        name="is_paused",
        kind=Kind.FLAG,
        group=OutboxGroup.DATABASE,
        label="Paused",
        help="the sweeper sends nothing; producers go on, up to their limits",
    ),
    Setting(
        name="broker",
        kind=Kind.TEXT,
        group=OutboxGroup.BROKER,
        label="Broker",
        help="a registered broker, which carries the topics of the messages",
        most=BROKER_NAME_LIMIT,
    ),
    Setting(
        name="window",
        kind=Kind.WHOLE,
        group=OutboxGroup.BROKER,
        label="Window",
        help="how many messages are sent before their confirmations are awaited; as"
        " many may be sent twice when a sweeper is killed",
        unit="messages",
        least=1,
        most=MOST_WINDOW,
    ),
    Setting(
        name="most_lag",
        kind=Kind.WHOLE,
        group=OutboxGroup.BROKER,
        label="Most lag",
        help="messages for a topic wait while its slowest consumer is so far behind;"
        " none: they do not wait",
        unit="messages",
        least=1,
        most=MOST_MESSAGES,
        is_optional=True,
    ),
    Setting(
        name="most_depth",
        kind=Kind.WHOLE,
        group=OutboxGroup.BROKER,
        label="Most in the broker",
        help="messages for a topic wait while its queue at the broker has so many; of a"
        " stream, those that were read count, too; none: they do not wait",
        unit="messages",
        least=1,
        most=MOST_MESSAGES,
        is_optional=True,
    ),
    Setting(
        name="sent_rows_days",
        kind=Kind.WHOLE,
        group=OutboxGroup.RETENTION,
        label="Rows that were sent",
        help="they are deleted after this time",
        unit="days",
        least=1,
        most=MOST_DAYS,
    ),
    Setting(
        name="sent_ids_days",
        kind=Kind.WHOLE,
        group=OutboxGroup.RETENTION,
        label="Ids that were sent",
        help="a message id that comes again within this time is recognised",
        unit="days",
        least=1,
        most=MOST_DAYS,
    ),
)
BY_NAME: Final[Mapping[str, Setting]] = {setting.name: setting for setting in SETTINGS}
