"""The control plane: transitions of a topic's layout."""
