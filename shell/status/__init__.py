"""What ``walship status`` prints: a page of sections."""
