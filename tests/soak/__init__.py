"""Two real clusters under random kills, switchovers and failovers, for as long as asked: ``make soak MINUTES=10``."""
