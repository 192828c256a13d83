"""The domain: segments, the DAG they form, and the operations that change it. Pure functions over frozen values."""
