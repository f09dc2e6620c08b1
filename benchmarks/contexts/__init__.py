"""Several data sets as the contexts of one search: what pooling is worth, and what it costs."""
