"""What recording a live system costs, beside the same system alone."""
