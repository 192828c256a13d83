"""What is wrong with a trace, said in a sentence for whoever named it."""


class TraceError(Exception):
    """A directory that is no trace, or one that cannot be used as asked."""
