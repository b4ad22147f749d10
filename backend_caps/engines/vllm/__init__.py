"""What vLLM's source says of its attention backends, read without importing it."""
