-- The queues of poisonguard.locks.postgres.PostgresLocks. A process needs SELECT, INSERT,
-- UPDATE and DELETE on both tables. Never delete a row yourself: the number of a ticket
-- is the fence of its holder, and may not come again.
CREATE TABLE IF NOT EXISTS poisonguard_lock_resources (
    name text PRIMARY KEY,
    last_ticket bigint NOT NULL DEFAULT 1
) WITH (fillfactor = 50); -- updated in place at each acquire
CREATE TABLE IF NOT EXISTS poisonguard_lock_tickets (
    resource text NOT NULL,
    number bigint NOT NULL,
    session text NOT NULL, -- of its holder: the channel that it listens on
    PRIMARY KEY (resource, number)
);
