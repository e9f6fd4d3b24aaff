"""The runtime's processes, and the launcher that keeps them alive."""
