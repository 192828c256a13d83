"""The admin API, health and metrics over HTTP."""
