"""Real Valkeys in every topology, fault injection and waiting, for tests of all packages."""
