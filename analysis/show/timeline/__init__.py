"""The timeline of a step: all ranks on one clock, as a picture, a page and a Perfetto trace."""
