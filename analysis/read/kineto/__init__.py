"""torch.profiler's Chrome traces, of any version, whole or damaged."""
