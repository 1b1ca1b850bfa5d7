"""Stands in for the trainer's package, which is not published: only the class that dataset.yaml names."""
