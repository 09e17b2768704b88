"""What a person mends: damaged or lost files, a lost ledger, a restored cluster, quarantined frames."""
