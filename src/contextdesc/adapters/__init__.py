"""Adapters: our features behind the interfaces that other software already calls."""
