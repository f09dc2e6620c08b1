"""Pruners: which running trials are hopeless. Pure logic over rewards."""
