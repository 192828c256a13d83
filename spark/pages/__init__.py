"""Reports as one HTML page each, which needs nothing beside itself: figures, charts, tables, notes.

Page("Replay", "sample trace on local[2]", sections=(
    Section("Latency", "From when a write was due.", parts=(
        Tiles((Tile("p99", "12.4 ms", "limit 20 ms", state="good"),)),
        percentile_curve("Latency", [Curve("watchers", ((0.5, 3.1), (0.99, 12.4)))], Axis("latency", numbers.millis)),
        Table(("namespace", "events"), (("acme/a", 1200),)),
        Note("Writes that were cancelled inside a window are counted apart."),
    )),
)).html()
"""
