"""The files of this host: how far each is durable, reading and registering them, the control log, spilling."""
