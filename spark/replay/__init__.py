"""Replay: the changes of a trace made again in a store, at their times, and what watchers of a server saw of them."""
