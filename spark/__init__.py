"""Jobs over recorded notification logs: synthesise, analyse, replay, report."""
