"""Reads model files: GGUF and Hugging Face directories. Nothing here imports torch until tensors are asked for."""
