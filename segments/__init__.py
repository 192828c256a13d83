"""The data plane: logs of segments and classic topics, their producers, cursors and dispatch."""
