"""What workers read for the record tools: arrays, tokenizers and untrusted formats stay out of the server."""
