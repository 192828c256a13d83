"""Finds tests that chance decides: runs them many times, in random order, alone and beside busy loops."""
