"""What strangers with a socket can do to the others: attacks, each in a few lines, and a healthy client beside them."""
