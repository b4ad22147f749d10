"""The settings of backend-caps itself: by file, environment and command line."""
