"""Requests, the step planner, settling and the loop; token ids only, never text."""
