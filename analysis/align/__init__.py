"""Works across ranks: matches collectives, puts all ranks on one clock, separates waits from transfers."""
