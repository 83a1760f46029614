"""What only the checkout needs."""
