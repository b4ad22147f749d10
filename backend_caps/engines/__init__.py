"""What an installed engine says of itself, read without importing it."""
