"""The accelerated reader (numba): the same columns from the same bytes, or None for what is not plain JSON."""
