"""Sockets, HTTP admin, CLI, settings, metrics, and the composition root."""
