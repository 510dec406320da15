"""One rank alone: `RankTrace` in, `RankData` out, on as many processes as pay; kept in the cache."""
