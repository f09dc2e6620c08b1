"""Pruners: they end running trials that can no longer win. Pure logic over rewards."""
