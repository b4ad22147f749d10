"""What configures backend-caps itself: by file, environment and command line."""
