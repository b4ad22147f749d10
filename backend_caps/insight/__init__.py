"""What a plan costs and does, shown by a run: measurements, dry runs and traces. Imports torch."""
