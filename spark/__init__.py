"""The pipeline over recorded traces, on Spark: synthesise, analyse, replay, report. The server never imports it."""
