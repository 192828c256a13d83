"""Traces: what a change feed said, recorded in a directory, and how such a directory is written and read.

A trace is a manifest beside numbered parts. A part is an append-only log while it is written and Parquet once it is
complete; both hold the same events, so whoever reads a trace need not care.
"""
