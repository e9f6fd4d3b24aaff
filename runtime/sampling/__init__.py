"""What a caller may ask of sampling, and the sampler that obeys."""
