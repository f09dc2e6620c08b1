"""Encodings that scenarios beside this file name."""

from tunegym.tuning.model.space import ObsLeafDescriptor


class Raises:
    def __init__(self, domain):
        self.domain = domain

    def descriptor(self):
        return ObsLeafDescriptor("box", 2)

    def encode(self, value):
        raise KeyError("oops")


class Wrong(Raises):
    def encode(self, value):
        return [1.0, 2.0, 3.0]
