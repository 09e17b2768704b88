"""What the verbs about copies share: options, reports, and a run with its progress."""
