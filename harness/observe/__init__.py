"""Finds steps and ranges of a user's loop, from its marks or from its calls of torch."""
