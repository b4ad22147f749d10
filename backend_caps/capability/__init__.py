"""What a backend says of itself."""
