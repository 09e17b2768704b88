"""walship's writing and shipping half: words (core), world, and the roles writer, master and worker."""

__version__ = "0.1.0"
