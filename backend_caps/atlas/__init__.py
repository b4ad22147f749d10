"""The atlas: what the attention backends of every release of an engine can do, read from source."""
