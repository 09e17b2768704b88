"""Users' files of rows: Parquet, Arrow, ORC and CSV, read in batches of bounded size.

Guarantees: a value that Arrow would misread is refused by line or row and column. Begin at ``row_files.py``.
"""
