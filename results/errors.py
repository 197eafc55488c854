"""The base of all errors that are the user's to mend."""


class UserError(ValueError):
    """A fault of the input: it is told in a line with its remedy, without a traceback."""
