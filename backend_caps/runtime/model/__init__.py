"""A Llama-architecture decoder loaded from a Hugging Face folder, and the choice of tokens.

It knows neither backends nor batches: attention is what the forward's context makes of it.
"""
