"""What an attention backend needs and supports: declared once, resolved with reasons."""
