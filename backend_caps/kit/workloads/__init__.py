"""What checks run longer than a forward: batches over the same pools, long runs, served traces."""
