"""What changes a topic, and the leaders that decide who consumes what."""
