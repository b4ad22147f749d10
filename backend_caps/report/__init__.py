"""Every view of what is installed and of a plan."""
