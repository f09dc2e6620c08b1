"""Stores: the record of an experiment."""
