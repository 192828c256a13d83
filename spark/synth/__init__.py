"""Synthetic traces: the shape of a recording or a profile, generated as wide and as long as asked."""
