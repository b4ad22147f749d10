"""Backends of installed engines, brought to the conformance kit by adapters. Imports torch."""
