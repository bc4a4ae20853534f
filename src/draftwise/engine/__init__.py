"""The embedded PyTorch engine: sequences, pages, scheduler, verification, models, proposers."""
