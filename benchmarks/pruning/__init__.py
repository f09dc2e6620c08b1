"""How much work pruners save on a staged function, and whether they lose its best setting."""
