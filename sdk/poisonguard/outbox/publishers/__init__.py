"""Publishers for an outbox, as `poisonguard.outbox.outcome` describes them."""
