class EvalError(Exception):
    """An eval cannot go on. The message is one line for its user; what was answered so far is kept."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(filter(None, map(str.strip, message.splitlines()))))  # a server may say several
