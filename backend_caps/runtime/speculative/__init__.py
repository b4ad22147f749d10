"""Speculative decoding: drafts that a target model verifies, several tokens a step."""
