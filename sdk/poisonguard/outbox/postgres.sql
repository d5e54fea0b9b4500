-- The outbox of poisonguard.outbox: messages that a producer writes in its own
-- transactions, and that a sweeper sends. It belongs in the producer's database.
--
-- A producer needs INSERT on poisonguard_outbox, and SELECT on it and on
-- poisonguard_outbox_figures. A sweeper needs SELECT, INSERT, UPDATE and DELETE on all
-- tables, and what poisonguard.locks.postgres needs.
CREATE TABLE IF NOT EXISTS poisonguard_outbox (
    row_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    producer text NOT NULL,
    message_id text NOT NULL,
    topic text NOT NULL,
    key text NOT NULL DEFAULT '', -- messages of one topic and key keep their order
    body bytea NOT NULL,
    headers bytea[] NOT NULL DEFAULT '{}', -- name, value, name, value, ...
    body_bytes integer GENERATED ALWAYS AS (octet_length(body)) STORED,
    created_at timestamptz NOT NULL DEFAULT now(),
    due_at timestamptz NOT NULL DEFAULT now(), -- while it is claimed: the end of that
    attempts integer NOT NULL DEFAULT 0,
    claim_token uuid, -- of the window in which a sweeper is sending it
    claimed_until timestamptz,
    sent_at timestamptz,
    duplicate_of bigint, -- the row with the same message that is sent instead
    quarantined_at timestamptz,
    quarantine_cause text, -- undecodable, rejected or manual
    quarantine_reason text,
    reported_at timestamptz, -- when the quarantine was reported to Poisonweb
    released_at timestamptz, -- when a person decided to send it all the same
    dropped_at timestamptz, -- when a person decided not to send it
    -- Who wrote the row, or changed it last: the trigger below sets these.
    writer_user text,
    writer_application text,
    writer_address inet,
    writer_transaction bigint,
    written_at timestamptz,
    CONSTRAINT poisonguard_outbox_one_message UNIQUE (producer, message_id),
    CONSTRAINT poisonguard_outbox_names CHECK (
        length(producer) BETWEEN 1 AND 255 AND length(message_id) BETWEEN 1 AND 255
        AND length(topic) BETWEEN 1 AND 255 AND length(key) <= 255
    ),
    CONSTRAINT poisonguard_outbox_header_pairs CHECK (cardinality(headers) % 2 = 0)
-- A claim and a mark write each row again: on its own page that is half the WAL, and a
-- smaller table in the end.
) WITH (fillfactor = 50);

-- What is neither sent, nor a duplicate, nor quarantined.
CREATE INDEX IF NOT EXISTS poisonguard_outbox_waiting
    ON poisonguard_outbox (row_id)
    WHERE sent_at IS NULL AND duplicate_of IS NULL AND quarantined_at IS NULL;
CREATE INDEX IF NOT EXISTS poisonguard_outbox_waiting_by_key
    ON poisonguard_outbox (topic, key, row_id)
    WHERE sent_at IS NULL AND duplicate_of IS NULL AND quarantined_at IS NULL;
-- A claim is a due_at in the future: what is not due has others wait behind it.
CREATE INDEX IF NOT EXISTS poisonguard_outbox_due
    ON poisonguard_outbox (due_at)
    WHERE sent_at IS NULL AND duplicate_of IS NULL AND quarantined_at IS NULL;
CREATE INDEX IF NOT EXISTS poisonguard_outbox_sent_at
    ON poisonguard_outbox (sent_at) WHERE sent_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS poisonguard_outbox_quarantined
    ON poisonguard_outbox (row_id) WHERE quarantined_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS poisonguard_outbox_unreported
    ON poisonguard_outbox (row_id)
    WHERE quarantined_at IS NOT NULL AND reported_at IS NULL;
CREATE INDEX IF NOT EXISTS poisonguard_outbox_duplicates
    ON poisonguard_outbox (row_id) WHERE duplicate_of IS NOT NULL;

-- What was sent, longer than its rows are there: so that a message id that comes again
-- later is noticed.
CREATE TABLE IF NOT EXISTS poisonguard_outbox_sent (
    producer text NOT NULL,
    message_id text NOT NULL,
    digest bytea NOT NULL, -- of topic, key, headers and body: poisonguard.outbox.digest
    sent_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (producer, message_id, digest)
);
CREATE INDEX IF NOT EXISTS poisonguard_outbox_sent_sent_at
    ON poisonguard_outbox_sent (sent_at);

-- The fence of the sweeper that may claim rows: an earlier one may not any more.
CREATE TABLE IF NOT EXISTS poisonguard_outbox_sweeper (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    fence bigint NOT NULL DEFAULT 0
);
INSERT INTO poisonguard_outbox_sweeper DEFAULT VALUES ON CONFLICT DO NOTHING;

-- What waits for each topic, as the sweeper measures it: `put` refuses messages by it
-- while it is at most a second old, so the sweeper measures twice a second.
CREATE TABLE IF NOT EXISTS poisonguard_outbox_figures (
    topic text PRIMARY KEY,
    waiting_rows bigint NOT NULL,
    waiting_bytes bigint NOT NULL,
    oldest_at timestamptz,
    measured_at timestamptz NOT NULL
);

-- These say who wrote a row or changed it last. A sweeper's marks fire none of them, and
-- cost no comparison of bodies.
CREATE OR REPLACE FUNCTION poisonguard_outbox_note_writer() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.writer_user := session_user;
    NEW.writer_application := pg_catalog.current_setting('application_name');
    NEW.writer_address := pg_catalog.inet_client_addr();
    NEW.writer_transaction := pg_catalog.txid_current();
    NEW.written_at := pg_catalog.clock_timestamp();
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER poisonguard_outbox_writer
    BEFORE INSERT ON poisonguard_outbox
    FOR EACH ROW EXECUTE FUNCTION poisonguard_outbox_note_writer();
CREATE OR REPLACE TRIGGER poisonguard_outbox_changer
    BEFORE UPDATE OF producer, message_id, topic, key, body, headers, writer_user,
        writer_application, writer_address, writer_transaction, written_at
    ON poisonguard_outbox
    FOR EACH ROW WHEN (
        (OLD.producer, OLD.message_id, OLD.topic, OLD.key, OLD.body, OLD.headers,
            OLD.writer_user, OLD.writer_application, OLD.writer_address,
            OLD.writer_transaction, OLD.written_at)
        IS DISTINCT FROM
        (NEW.producer, NEW.message_id, NEW.topic, NEW.key, NEW.body, NEW.headers,
            NEW.writer_user, NEW.writer_application, NEW.writer_address,
            NEW.writer_transaction, NEW.written_at)
    )
    EXECUTE FUNCTION poisonguard_outbox_note_writer();
-- A sweeper takes back none of its marks; a person releases what was quarantined.
CREATE OR REPLACE TRIGGER poisonguard_outbox_unmarker
    BEFORE UPDATE OF sent_at, duplicate_of, quarantined_at ON poisonguard_outbox
    FOR EACH ROW WHEN (
        (OLD.sent_at IS NOT NULL AND NEW.sent_at IS NULL)
        OR (OLD.duplicate_of IS NOT NULL AND NEW.duplicate_of IS NULL)
        OR (
            OLD.quarantined_at IS NOT NULL AND NEW.quarantined_at IS NULL
            AND NEW.released_at IS NULL
        )
    )
    EXECUTE FUNCTION poisonguard_outbox_note_writer();
-- A claim or a pause of a sweeper is shorter.
CREATE OR REPLACE TRIGGER poisonguard_outbox_delayer
    BEFORE UPDATE OF due_at ON poisonguard_outbox
    FOR EACH ROW WHEN (
        NEW.due_at IS DISTINCT FROM OLD.due_at
        AND coalesce(NEW.due_at, 'infinity') > now() + interval '1 day'
    )
    EXECUTE FUNCTION poisonguard_outbox_note_writer();
