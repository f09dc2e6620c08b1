"""Whether answers hold: search, confirmation and decision inside one budget, beside the truth."""
