"""Where records live: keys, codecs, the store with its scripts, the change feed, node leases."""
