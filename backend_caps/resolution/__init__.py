"""What a server needs of its backends, and why."""
