"""Imports whole files: a file becomes visible under one commit time, or not at all."""
