"""The programs' images and what builds them."""
