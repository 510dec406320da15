"""The accelerated reader (numba): the same columns from the same bytes, or None if the text is not plain JSON."""
