"""A package, so that the test files share `rig`, `oracle` and `watch` by relative imports."""
