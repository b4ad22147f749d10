"""A package, so that the test files share `grid`, `graphs` and `compiling` by relative imports."""
