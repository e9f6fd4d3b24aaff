"""Runs planned steps on the device."""
