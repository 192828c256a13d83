"""What a trace says about a deployment: churn, bursts, rates, what watchers would be sent, what a node would need."""
