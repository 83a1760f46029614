"""The project's English as rules of proselint: `python -m scripts.prose` checks every page that a person writes."""
