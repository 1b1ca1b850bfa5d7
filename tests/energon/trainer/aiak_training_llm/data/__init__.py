"""Data classes of the trainer."""
