"""A compact overlapped engine on which backends really run. Imports torch."""
