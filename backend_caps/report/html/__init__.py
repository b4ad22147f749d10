"""Documents as pages: one file each that a browser opens from disk."""
