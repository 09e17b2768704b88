"""Files of rows that people have: Parquet, Arrow, ORC and CSV."""
