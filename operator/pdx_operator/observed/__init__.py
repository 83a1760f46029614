"""observed."""
