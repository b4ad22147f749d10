"""A package, so that the test files share `fake` by relative imports."""
