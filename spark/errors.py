"""What keeps a job from being done, said in a sentence for whoever started it."""


class JobError(Exception):
    """The job cannot be done as asked; the text says what to do."""


class Interrupted(KeyboardInterrupt):
    """A job was ended from outside; the text says what became of what it had begun."""
