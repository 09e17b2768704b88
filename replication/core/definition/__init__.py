"""What a table is and how its definition changes, on clusters that do not ask each other."""
