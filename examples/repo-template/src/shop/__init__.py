"""A small shop. All amounts are whole cents."""
