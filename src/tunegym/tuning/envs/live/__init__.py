"""Live experiments: a server answers, the same journal records."""
