"""The files of this host: durable lengths, registering, the control log, closed time, orphans and spilling."""
