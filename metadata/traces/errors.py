"""What is wrong with a trace, said in a sentence for whoever named it."""


class TraceError(Exception):
    """A directory that is no trace, or one that cannot be used as asked."""


class LogDamaged(TraceError):
    """A log of which nothing is known from the byte `at` on; what is before that is whole."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(text)
        self.at = at
