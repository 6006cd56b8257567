"""The service itself: health, metrics, the tokenizer, running requests, the loaded model."""
