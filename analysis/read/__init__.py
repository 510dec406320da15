"""Finds the input files and reads them, from both profilers, into one `RankTrace` per rank."""
