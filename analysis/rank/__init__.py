"""Works on one rank at a time: `RankTrace` in, `RankData` out, in several processes if that is faster; and cached."""
