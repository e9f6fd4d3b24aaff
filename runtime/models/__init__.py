"""Model configurations, weights from disk, and the forward pass."""
