-- What consumers have handled: poisonguard.dedupe.postgres.PostgresWindow marks each
-- message in the transaction of its handler. A consumer needs INSERT on it, and SELECT
-- and DELETE for `forget`.
CREATE TABLE IF NOT EXISTS poisonguard_marks (
    consumer_group text NOT NULL,
    topic text NOT NULL,
    key bytea NOT NULL, -- of the message id, and of the redrive that has sent it
    marked_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, topic, key)
);
CREATE INDEX IF NOT EXISTS poisonguard_marks_marked_at
    ON poisonguard_marks (marked_at);
