"""The files of this host: durable lengths, reading, registering, the control log, closed time, orphans and spilling."""
