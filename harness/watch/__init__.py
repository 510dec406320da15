"""What a `Monitor` does with the steps of a long run: exchange, judge, log, trace."""
