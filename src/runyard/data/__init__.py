"""Where data is, and what recipes lead to: datastores, datasets, and following them."""
