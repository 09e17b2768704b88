"""One pass to a peer: routes are declared, frames selected, messages sent, and answers taken in."""
