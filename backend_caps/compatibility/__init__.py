"""Whether a plugin fits an engine: where the two meet, and what of it breaks."""
