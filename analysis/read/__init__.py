"""Files in, one `RankTrace` a rank out: what lies at a path, and the readers of both profilers."""
