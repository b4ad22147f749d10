"""What a declaration and a runtime are tried on. Imports torch."""
