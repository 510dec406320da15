"""Reads torch.profiler's Chrome traces of any version, complete or damaged."""
