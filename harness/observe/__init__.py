"""Steps and ranges of a loop that is not ours, from marks or from calls of torch."""
