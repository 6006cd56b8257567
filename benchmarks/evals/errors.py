class EvalError(Exception):
    """An eval cannot go on. The message is one line for its user; what was answered so far is kept."""
