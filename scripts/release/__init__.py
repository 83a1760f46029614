"""What a release of PDX contains, under which names, and how it is built: `python -m scripts.release`."""
