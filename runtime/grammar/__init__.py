"""Constraints compiled to matchers that mask tokens."""
