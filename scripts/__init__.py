"""Programs of the checkout that no package contains."""
