"""The wire: bytes to commands and back, names and hashes. Pure, its `client` part excepted."""
