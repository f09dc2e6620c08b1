"""A module that nobody should name like this."""


def measure(a):
    return {"m": a}
