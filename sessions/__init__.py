"""The watches: hub, outbox and the dialogue of one connection."""
