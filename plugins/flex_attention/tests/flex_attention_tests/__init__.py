"""A package, so that the test files share `rig` by relative imports."""
